"""Other people's services, as they are: one fails now and then, also after it has done its work; one says 429."""

import random
import time
from collections import Counter
from typing import Annotated

from fastapi import FastAPI, Header, Request, Response

web = FastAPI()
mails: dict[str, int] = {}
events: dict[str, int] = {}
seen: Counter[str] = Counter()
per_second: Counter[int] = Counter()
MOST_EVENTS_PER_SECOND = 40


@web.post("/mails")
async def send_mail(request: Request, idempotency_key: Annotated[str, Header()]) -> Response:
    order = (await request.json())["order_id"]
    seen["mail requests"] += 1
    if random.random() < 0.15:
        return Response(status_code=500)
    mails.setdefault(idempotency_key, order)
    if random.random() < 0.15:
        seen["mails sent, answered with 500"] += 1
        return Response(status_code=500)
    return Response(status_code=201)


@web.post("/events")
async def take_event(request: Request, idempotency_key: Annotated[str, Header()]) -> Response:
    order = (await request.json())["order_id"]
    second = int(time.monotonic())
    if per_second[second] >= MOST_EVENTS_PER_SECOND:
        seen["429"] += 1
        return Response(status_code=429, headers={"Retry-After": "1"})
    per_second[second] += 1
    events.setdefault(idempotency_key, order)
    return Response(status_code=201)


@web.get("/ledger")
async def ledger() -> dict[str, dict[str, int]]:
    return {"mails": mails, "events": events, "seen": dict(seen)}
