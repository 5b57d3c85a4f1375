"""Uploading a folder to the Hugging Face Hub, only when a command says so."""

import re
from pathlib import Path

from onsight.errors import ConfigError, OutputError
from onsight.models.hub import is_of_network

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def check_can_push(repository: str) -> None:
    """Raise ConfigError, before any work, for a name that cannot be or without a token."""
    from huggingface_hub import get_token

    if not _REPOSITORY.fullmatch(repository):
        raise ConfigError(f"--push {repository}: give the repository as OWNER/NAME")
    if get_token() is None:
        raise ConfigError(
            f"--push {repository} needs a token of the Hugging Face Hub: hf auth login, or set "
            "HF_TOKEN"
        )


def push(folder: Path, repository: str) -> str:
    """Upload a folder as one commit, and return its address; a new repository is private.

    Raises OutputError if the Hub refuses it or does not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(library_name="onsight")
    try:
        made = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=folder, commit_message="Model, config and card"
        )
    except HfHubHTTPError as error:
        raise OutputError(
            f"the Hub refused {repository}: {_first_line(error)}. Everything is still in {folder}; "
            "check the name, and that your token may write: hf auth whoami"
        ) from error
    except Exception as error:
        if not is_of_network(error):
            raise
        raise OutputError(
            f"the Hub does not answer ({type(error).__name__}: {_first_line(error)}). Everything "
            f"is still in {folder}; try again with a network"
        ) from error
    return str(made)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
