"""The command `onsight doctor`."""

import json

from onsight.commands.options import Json


def doctor(*, json_: Json = False) -> None:
    """Check this machine: what works, what slows down training, and how to fix it."""
    from rich.console import Console

    from onsight.doctor.examine import examine
    from onsight.doctor.line import count
    from onsight.doctor.show import facts, print_lines

    with Console(stderr=True).status("checking this machine") as status:
        lines = examine(tell=lambda topic: status.update(f"checking this machine: {topic}"))
    if json_:
        print(json.dumps(facts(lines)))
    else:
        print_lines(lines, Console(highlight=False))
    if count(lines, "problem"):
        raise SystemExit(1)
