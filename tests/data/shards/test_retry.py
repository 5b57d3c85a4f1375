"""Which failures are repeated, by what servers and libraries raise."""

import errno
import http.client

import pytest

from onsight.data.shards import retry
from onsight.data.shards.retry import call_with_retries, is_transient


class Answered(Exception):
    def __init__(self, status):
        super().__init__(str(status))
        self.status = status


class Refused(Exception):
    def __init__(self, status):
        super().__init__(str(status))
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


def caused(error, cause):
    error.__cause__ = cause
    return error


PASSING = [
    TimeoutError(),
    ConnectionResetError(),
    OSError(errno.EBUSY, "SlowDown"),
    http.client.IncompleteRead(b"half"),
    *[Answered(status) for status in (408, 429, 500, 502, 503, 504)],
    Refused(503),
    caused(OSError(errno.EINVAL, "?"), Refused(500)),
    caused(FileNotFoundError(), ConnectionRefusedError()),
]
FINAL = [
    FileNotFoundError(),
    PermissionError(),
    OSError(errno.EINVAL, "400"),
    ValueError(),
    *[Answered(status) for status in (400, 401, 403, 404, 416)],
    caused(OSError("412"), Refused(412)),
    caused(FileNotFoundError(), KeyError()),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_transient_errors(error):
    assert is_transient(error)


@pytest.mark.parametrize("error", FINAL, ids=repr)
def test_permanent_errors(error):
    assert not is_transient(error)


def test_pauses_double_with_jitter_and_the_last_failure_is_named(monkeypatch):
    pauses = []
    monkeypatch.setattr(retry.time, "sleep", pauses.append)

    def fail():
        raise TimeoutError("no answer")

    with pytest.raises(Exception, match=r"s3://x.*TimeoutError: no answer"):
        call_with_retries(fail, "s3://x")
    assert len(pauses) == retry.TRIES - 1
    for number, pause in enumerate(pauses):
        whole = retry.FIRST_PAUSE_SECONDS * 2**number
        assert whole / 2 <= pause <= whole
