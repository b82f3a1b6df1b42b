"""`tandem-worker`, whole and unchanged, with two more routes: in which states its transfers are, and `arrange`."""

from __future__ import annotations

from aiohttp import web

from tandem_worker import main as worker
from tandem_worker.assembly import assemble
from tandem_worker.server.app import make_app
from workers.tests.transfer.arranged import Facts, arrange, states

ASSEMBLED: list = []


async def assemble_and_keep(*facts):
    ASSEMBLED.append(await assemble(*facts))
    return ASSEMBLED[-1]


def app_with_more(service):
    app = make_app(service)
    app.router.add_get("/watched", watched)
    app.router.add_post("/arranged", arranged)
    return app


async def watched(request):
    (one,) = ASSEMBLED
    return web.json_response(states(one.node, one.engine))


async def arranged(request):
    (one,) = ASSEMBLED
    arrange(one.node, one.engine, Facts(**await request.json()))
    return web.json_response({})


def main() -> None:
    worker.assemble, worker.make_app = assemble_and_keep, app_with_more
    worker.main()
