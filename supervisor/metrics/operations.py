"""Operations for Prometheus: the metrics page and the discovery of the engines' own."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from supervisor.api.operation import Call, Operation
from supervisor.metrics.discovery import targets
from supervisor.metrics.page import page

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_OPENMETRICS_TYPE = "application/openmetrics-text"


async def show_metrics(call: Call) -> Response:
    """OpenMetrics for who asks for it first, the text format for everybody else."""
    openmetrics = prefers_openmetrics(call.request.headers.get("accept", ""))
    body = page(call.control, openmetrics=openmetrics)
    return Response(body, headers={"content-type": OPENMETRICS if openmetrics else TEXT, "cache-control": "no-store"})


def prefers_openmetrics(accept: str) -> bool:
    """Whether the header names OpenMetrics, and no text format with more weight."""
    weights: dict[str, float] = {}
    for media_type, quality in map(_weighted, accept.split(",")):
        weights[media_type] = max(quality, weights.get(media_type, 0.0))  # Prometheus names each version of a type
    wanted = weights.get(_OPENMETRICS_TYPE, 0.0)
    return wanted > 0 and wanted >= weights.get("text/plain", 0.0)


def _weighted(part: str) -> tuple[str, float]:
    media_type, *parameters = (piece.strip() for piece in part.split(";"))
    quality = next((text[2:] for text in parameters if text.startswith("q=")), "1")
    try:
        return media_type.lower(), float(quality)
    except ValueError:
        return media_type.lower(), 0.0


async def discover(call: Call) -> Response:
    found = targets(call.control, call.request.headers.get("host", ""))
    return Response(msgspec.json.encode(found), media_type="application/json")


OPERATIONS = (
    Operation(
        "GET",
        "/metrics",
        "showMetrics",
        "Metrics for Prometheus, as text or OpenMetrics",
        show_metrics,
        media_types=("text/plain", _OPENMETRICS_TYPE),
        on_tcp=True,
    ),
    Operation(
        "GET",
        "/sd",
        "discoverEngines",
        "The engines' own metrics, for Prometheus' HTTP service discovery",
        discover,
        on_tcp=True,
    ),
)
