"""Instance metadata of EC2 and Google Cloud, from the link-local address of the metadata service.

Only reads, with short timeouts and never through a proxy. On other machines no service answers.

Tested in tests/sweeps/machines/test_preemption.py.
"""

from __future__ import annotations

import urllib.error
import urllib.request

ADDRESS = "http://169.254.169.254"
TIMEOUT_SECONDS = 1.0

_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """The body of the response; None: the service has no such value (404).

    Raises:
        OSError: no answer, or another error.
    """
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with _direct.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return answer.read(64 * 1024).decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def ec2(path: str, address: str = ADDRESS) -> str | None:
    """A value of EC2's instance metadata, version 2: a token is requested first. See `get`."""
    token = get(f"{address}/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "300"}, "PUT")
    return get(f"{address}/latest/meta-data/{path}", {"X-aws-ec2-metadata-token": token or ""})


def gcp(path: str, address: str = ADDRESS) -> str | None:
    """A value of Google Cloud's metadata. See `get`."""
    return get(f"{address}/computeMetadata/v1/{path}", {"Metadata-Flavor": "Google"})


def ec2_instance_id() -> str:
    """The instance id of this host; empty where it is no EC2 instance."""
    try:
        return (ec2("instance-id") or "").strip()
    except OSError:
        return ""
