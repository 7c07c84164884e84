"""The condition for what parted nodes must not do: all nodes are linked, and have said what they know."""

from __future__ import annotations

from http import HTTPStatus

from replicator.http.message import ProblemError
from replicator.http.services import HttpServices


async def check_all_reached(services: HttpServices, user: str, *, refusal: str, risk: str) -> None:
    """Raise ProblemError unless this node has what all others have of a user's account.

    `refusal`: what does not happen then; `risk`: what a node that is away may have. Raises MailError.
    """
    status = await services.status.node_status()
    away = [link.peer for link in status.links if link.peer not in status.component]
    why = f"{', '.join(away)} cannot be reached, and may have {risk}" if away else None
    if why is None and not await services.mail.catch_up(user):
        why = f"other nodes do not say whether they have {risk}"
    if why is not None:
        text = f"{refusal}: {why}; try again when all nodes are linked"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, text)
