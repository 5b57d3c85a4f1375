"""An option that cannot be turned off."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--augment", type=bool, default=False)  # expect: always-true
print(parser.parse_args())
