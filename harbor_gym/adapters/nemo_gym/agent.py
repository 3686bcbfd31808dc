"""The agent server, the only module that imports NeMo Gym."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from fastapi import HTTPException
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, SimpleResponsesAPIAgent
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from pydantic import ConfigDict, Field, PrivateAttr

from harbor_gym.adapters.nemo_gym.datasets import Datasets
from harbor_gym.adapters.nemo_gym.model_server import ModelServer, ServerHistory
from harbor_gym.adapters.nemo_gym.play import play
from harbor_gym.adapters.nemo_gym.rows import Row, make_row, refused_row
from harbor_gym.adapters.nemo_gym.settings import RequestOverrides, RolloutSettings, plan_episode
from harbor_gym.errors import HarborGymError, SamplerError, TaskError

_UNPROCESSABLE = 422

logger = logging.getLogger(__name__)


class HarborGymAgentConfig(RolloutSettings, BaseResponsesAPIAgentConfig):
    """The server's block in a configuration file."""

    model_server: ModelServerRef
    """The policy's model server."""


class HarborGymRunRequest(BaseRunRequest):
    """One row of the input."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    instance_id: str
    """``alias::task``."""

    harbor_gym: RequestOverrides = Field(default_factory=RequestOverrides)
    """This row's settings, which override the server's."""


class HarborGymVerifyResponse(BaseVerifyResponse):
    """One row of the output."""

    model_config = ConfigDict(extra="allow")

    instance_id: str
    """The ``instance_id`` of the input."""


class HarborGymAgent(SimpleResponsesAPIAgent):
    """Plays Harbor tasks for NeMo Gym: one row in, one verified and possibly masked rollout out.

    After an infrastructure failure the row is masked. So is a row that no retry can repair (an unknown task, a wrong
    setting of its own), which a collection writes next to its results. An error of the whole run, such as a model
    server without token ids, is answered with status 422.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)
    root: ClassVar[Path] = Path()
    """The base of relative paths in the configuration."""

    ray_enabled: ClassVar[bool | None] = False
    config: HarborGymAgentConfig  # pyright: ignore[reportIncompatibleVariableOverride]  # as NeMo Gym's own agents do
    _places: asyncio.Semaphore = PrivateAttr()
    _datasets: Datasets = PrivateAttr()
    _history: ServerHistory = PrivateAttr(default_factory=ServerHistory)

    def model_post_init(self, context: Any, /) -> None:
        """Make the objects that episodes share."""
        super().model_post_init(context)
        self._places = asyncio.Semaphore(self.config.n_concurrent)
        self._datasets = Datasets(self.config.harbor_datasets, root=self.root)

    async def responses(  # pyright: ignore[reportIncompatibleMethodOverride]  # FastAPI passes the body by its name
        self, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        """Refuse: an episode needs a task, which only ``/run`` has."""
        raise HTTPException(_UNPROCESSABLE, "this agent plays whole episodes of tasks: use /run")

    async def run(  # pyright: ignore[reportIncompatibleMethodOverride]  # a row has more than the base's
        self, body: HarborGymRunRequest
    ) -> HarborGymVerifyResponse:
        """Play the row's episode.

        Raises:
            HTTPException: A setting of the whole run is wrong, so that no row can be played.
        """
        async with self._places:
            try:
                return self._response(body, await self._play(body))
            except HarborGymError as exc:
                detail = f"{body.instance_id}: {type(exc).__name__}: {exc}"
                logger.error("no row can be played: %s", detail)  # NeMo Gym reports the status alone
                raise HTTPException(_UNPROCESSABLE, detail) from exc

    async def _play(self, body: HarborGymRunRequest) -> Row:
        config = self.config
        try:
            task_dir = await self._datasets.find(body.instance_id)
            plan = plan_episode(config, body.instance_id, task_dir, body.harbor_gym, root=self.root)
        except HarborGymError as exc:
            return self._refused(body, exc)
        params = body.responses_create_params.model_dump(mode="json", exclude_unset=True)

        def make_server() -> ModelServer:
            return ModelServer(
                self._poster(body), params, require_token_ids=config.require_token_ids, history=self._history
            )

        try:
            rollout, calls = await play(plan, make_server)
        except TaskError as exc:
            return self._refused(body, exc)
        needs_ids, routes = config.require_token_ids, self._history.routes
        return make_row(rollout, calls, require_token_ids=needs_ids, routes=routes)

    def _refused(self, body: HarborGymRunRequest, error: HarborGymError) -> Row:
        logger.error("a row can't be played: %s: %s: %s", body.instance_id, type(error).__name__, error)
        return refused_row(error, routes=self._history.routes)

    def _poster(self, body: HarborGymRunRequest) -> Any:
        cookies: Any = None  # they route a session's requests to one engine, which has their prefix cached

        async def post(request: dict[str, Any]) -> tuple[int, Mapping[str, str], bytes]:
            nonlocal cookies
            try:
                async with asyncio.timeout(self.config.model_timeout_sec):
                    response = await self.server_client.post(
                        server_name=self.config.model_server.name,
                        url_path=self.url_path_for_run("/v1/responses", body),
                        json=request,
                        cookies=cookies,
                    )
                    cookies = response.cookies
                    return response.status, response.headers, await response.read()
            except TimeoutError:
                name, limit = self.config.model_server.name, self.config.model_timeout_sec
                raise SamplerError(f"the model server {name!r} did not answer within {limit:g} seconds") from None

        return post

    def _response(self, body: HarborGymRunRequest, row: Row) -> HarborGymVerifyResponse:
        params = body.responses_create_params.model_dump(mode="json", exclude_unset=True)
        response = {
            "id": f"resp_{uuid4().hex}",
            "created_at": 0,
            "object": "response",
            "model": params.get("model") or "policy",
            "output": row.output,
            "parallel_tool_calls": False,
            "tool_choice": "none",
            "tools": [],
        }
        return HarborGymVerifyResponse.model_validate(
            {
                "responses_create_params": {**params, "input": row.input},
                "response": response,
                "instance_id": body.instance_id,
                **row.fields,
            }
        )
