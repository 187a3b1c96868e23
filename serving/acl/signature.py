"""The signature of a request: base64 of HMAC-SHA1, by the secret of its access key.

It covers the values of all ext fields but itself, in the order of their names, and the body.
Source: RocketMQ 5.3.2 ``AclUtils``, ``AclClientRPCHook``.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Container

from reput.serving.codes import RequestCode
from reput.serving.frame import Frame

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
"""Names of ext fields."""
_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"


def sign(request: Frame, secret: str, unsigned: Container[str] = ()) -> str:
    """Return the signature of a request, in which the values of ``unsigned`` fields are left
    out."""
    # names are compared as Java compares them, by UTF-16 units
    names = sorted(request.ext, key=lambda name: name.encode("utf-16-be"))
    values = [
        request.ext[name].encode() for name in names if name != SIGNATURE and name not in unsigned
    ]
    content = b"".join((*values, request.body))
    return base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()


def is_signed(request: Frame, secret: str) -> bool:
    """Whether a request has the signature that its content and this secret give.

    A query of messages may leave _UNIQUE_KEY_QUERY out: clients up to 4.9.3 add it after they have
    signed.
    """
    given = request.ext.get(SIGNATURE, "").encode()
    is_right = hmac.compare_digest(given, sign(request, secret).encode())
    if request.code == RequestCode.QUERY_MESSAGE and _UNIQUE_KEY_QUERY in request.ext:
        without = sign(request, secret, (_UNIQUE_KEY_QUERY,))
        is_right |= hmac.compare_digest(given, without.encode())
    return is_right
