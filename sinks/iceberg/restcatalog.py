"""A REST catalog whose requests end; pyiceberg 0.12 waits for an answer without a limit."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.rest import RestCatalog
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter

REQUEST_SECONDS = 60.0


class LimitedRestCatalog(RestCatalog):
    """Raises ReadTimeout or ConnectTimeout where an answer takes longer than REQUEST_SECONDS; it is
    not known then whether the request was taken."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _LimitedAdapter())
        return session


class _LimitedAdapter(HTTPAdapter):
    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        options["timeout"] = options.get("timeout") or REQUEST_SECONDS
        return super().send(request, *arguments, **options)
