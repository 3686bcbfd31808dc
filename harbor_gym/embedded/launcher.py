"""Run SkyRL's Tinker-compatible server with this interpreter; it ends with its parent process.

    python -m harbor_gym.embedded.launcher --base-model DIR --backend transformers --port 8000 ...

It takes every option of ``skyrl.tinker.api`` and a few of its own (``--help`` lists them). The engine is the one in
the folder beside this file, instead of SkyRL's. This file imports nothing of harbor_gym, so an interpreter that only
has SkyRL can run it by its path.

SkyRL's server is changed in seven places by private names of one SkyRL version; :func:`verify_skyrl` refuses others:

1. The engine process is this file run by this interpreter, not ``uv run`` with extras.
2. A promise of samples carries one id per sample, which the Tinker SDK asserts since 0.28.
3. ``load_weights`` without a model makes the model first: the SDK creates a client from a checkpoint in one request.
4. The checkpoint routes accept the ids (``session:train:0``) that the SDK gives to models made that way.
5. The server process imports torch when it first uses it, which it does for images alone: that takes seconds.
6. The engine process has one backend, ``transformers``.
7. A sampling session may name the base model beside its weights, as the cookbook does for a KL penalty's reference.
"""

import argparse
import contextlib
import ctypes
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import signal
import socket
import sqlite3
import sys
import types
from collections.abc import Generator
from pathlib import Path
from typing import Any

SKYRL_VERSION = "0.4.0"

TRANSFORMERS = "transformers"
"""The name of our own backend."""

ENGINE_NAMES = (
    "skyrl.tinker.config:EngineConfig.model_fields",
    "skyrl.tinker.config:add_model",
    "skyrl.tinker.engine:TinkerEngine.run",
    "skyrl.tinker.engine:get_backend_classes",
)
"""Every name of SkyRL that this file calls or replaces in the engine process, as ``module:attribute``."""

SERVER_NAMES = (
    "skyrl.tinker.api:_build_uv_run_cmd_engine",
    "skyrl.tinker.api:app",
    "skyrl.tinker.api:asample",
    "skyrl.tinker.api:create_future",
    "skyrl.tinker.api:create_sampling_session",
    "skyrl.tinker.api:CreateSamplingSessionRequest.model_fields",
    "skyrl.tinker.api:CreateSamplingSessionResponse",
    "skyrl.tinker.api:get_model",
    "skyrl.tinker.api:get_session",
    "skyrl.tinker.api:load_weights",
    "skyrl.tinker.api:FutureResponse.model_fields",
    "skyrl.tinker.api:HTTP_KEEP_ALIVE_TIMEOUT_SECONDS",
    "skyrl.tinker.api:ID_MAX_LENGTH",
    "skyrl.tinker.api:ID_PATTERN",
    "skyrl.tinker.api:LoadWeightsRequest.model_fields",
    "skyrl.tinker.api:ModelDB.lora_config",
    "skyrl.tinker.api:SampleRequest.model_fields",
    "skyrl.tinker.config:EngineConfig.model_fields",
    "skyrl.tinker.config:add_model",
    "skyrl.tinker.config:config_to_argv",
    "skyrl.tinker.types:CreateModelInput",
    "skyrl.tinker.types:LoraConfig",
    "skyrl.tinker.types:RequestType.CREATE_MODEL",
    "skyrl.tinker.types:SampleOutput.model_fields",
    "skyrl.tinker.types:TinkerPath.parse",
    "skyrl.utils.log:get_uvicorn_log_config",
)
"""The same in the server process."""

PATCHED_ROUTES = ("/api/v1/asample", "/api/v1/load_weights", "/api/v1/create_sampling_session")
"""Routes of the server that are replaced (changes 2, 3 and 7)."""

CHECKPOINT_ROUTES = (
    "/api/v1/training_runs/{unique_id}/checkpoints/{checkpoint_id}/archive",
    "/api/v1/training_runs/{unique_id}/checkpoints/{checkpoint_id}/download",
    "/api/v1/training_runs/{unique_id}/checkpoints/{checkpoint_path:path}",
    "/api/v1/training_runs/{unique_id}/checkpoints",
    "/api/v1/models/{unique_id}/checkpoints",
)
"""Routes of the server whose ``unique_id`` is widened (change 4)."""

READY = "ready"
"""The status of an engine that has loaded the model."""

SDK_ID_PATTERN = r"^[a-zA-Z0-9_:-]+$"
_PR_SET_PDEATHSIG = 1
_GRACEFUL_SHUTDOWN_SEC = 1


class _LateModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _late_torch() -> Generator[None]:
    """Give a module that is imported meanwhile a torch that is imported at its first use (change 5)."""
    if "torch" in sys.modules or (spec := importlib.util.find_spec("torch")) is None:
        yield
        return
    late = sys.modules["torch"] = _LateModule("torch")
    late.__spec__ = spec
    try:
        yield
    finally:
        if sys.modules.get("torch") is late:
            del sys.modules["torch"]


def verify_skyrl(*, server: bool = True, engine: bool = True) -> list[str]:
    """Check that the installed SkyRL is the version for which these changes were written.

    Args:
        server: Whether to check the names that the server process uses.
        engine: Whether to check the names that the engine process uses.

    Returns:
        One line per problem; empty if the server can be started.
    """
    try:
        version = importlib.metadata.version("skyrl")
    except importlib.metadata.PackageNotFoundError:
        return [f"skyrl is not installed for {sys.executable}; expected skyrl[tinker]=={SKYRL_VERSION}"]
    problems: list[str] = []
    if version != SKYRL_VERSION:
        problems.append(f"skyrl {version} is installed; this launcher changes private names of {SKYRL_VERSION} only")
    for name in dict.fromkeys((*(ENGINE_NAMES if engine else ()), *(SERVER_NAMES if server else ()))):
        module, _, attributes = name.partition(":")
        try:
            with _late_torch() if module == "skyrl.tinker.api" else contextlib.nullcontext():
                found: Any = importlib.import_module(module)
            for attribute in attributes.split("."):
                found = getattr(found, attribute)
        except (ImportError, AttributeError) as error:
            problems.append(f"skyrl has no {name} ({error})")
    if server and not problems:
        paths = {getattr(route, "path", "") for route in importlib.import_module("skyrl.tinker.api").app.router.routes}
        problems += [
            f"skyrl's server has no route {path}" for path in PATCHED_ROUTES + CHECKPOINT_ROUTES if path not in paths
        ]
    return problems


def die_with_parent(parent_pid: int) -> None:
    """Make the kernel kill this process when its parent ends, in any way.

    Args:
        parent_pid: The expected parent's process id.

    Raises:
        SystemExit: The parent has already ended.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        raise SystemExit(f"the parent process {parent_pid} is gone; not starting")


def _own_options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 is any free one")
    parser.add_argument("--listen-fd", type=int, help="an inherited socket to listen on, instead of --host and --port")
    parser.add_argument("--status-file", type=Path, help="file that has what is done now: a process id and words")
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help="end when this parent process ends")
    parser.add_argument("--verify", action="store_true", help="only look whether this SkyRL can be started")
    parser.add_argument("--engine", action="store_true", help="be the engine process (used by the server itself)")
    return parser


def _engine_argv(own: argparse.Namespace, _parent_argv: list[str], engine_config: Any) -> list[str]:
    from skyrl.tinker.config import config_to_argv

    # -P keeps this file's folder, whose modules have common names, out of the engine's import path.
    argv = [sys.executable, "-P", str(Path(__file__).resolve()), "--engine", "--die-with-parent", str(os.getpid())]
    if own.status_file is not None:
        argv += ["--status-file", str(own.status_file)]
    return argv + config_to_argv(engine_config)


def _replace_route(app: Any, path: str, endpoint: Any, **options: Any) -> None:
    routes = app.router.routes
    index = next(i for i, route in enumerate(routes) if getattr(route, "path", "") == path)
    old = routes.pop(index)
    app.add_api_route(
        path, endpoint, methods=sorted(old.methods), name=old.name, status_code=old.status_code, **options
    )
    routes.insert(index, routes.pop())


def _patch_sample_promise(api: Any) -> None:
    import fastapi

    class SamplePromise(api.FutureResponse):
        sample_sequence_ids: list[str]

    original = api.asample

    async def asample(request: Any, req: Any, session: Any) -> Any:
        promise = await original(request, req, session)
        ids = [f"{promise.request_id}-{index}" for index in range(request.num_samples)]
        return SamplePromise(**promise.model_dump(), sample_sequence_ids=ids)

    asample.__annotations__ = {"request": api.SampleRequest, "req": fastapi.Request}
    asample.__defaults__ = (fastapi.Depends(api.get_session),)
    _replace_route(api.app, "/api/v1/asample", asample, response_model=SamplePromise)


def _patch_load_weights(api: Any) -> None:
    import fastapi

    types = importlib.import_module("skyrl.tinker.types")
    original = api.load_weights

    class LoadWeights(api.LoadWeightsRequest):
        model_id: str | None = None
        session_id: str | None = None
        model_seq_id: int | None = None

    async def create_from_checkpoint(request: Any, session: Any) -> str:
        path = types.TinkerPath.parse(request.path)
        if path is None or request.session_id is None or request.model_seq_id is None:
            raise fastapi.HTTPException(400, "load_weights needs a model, or a session and a tinker:// path")
        source = await api.get_model(session, path.primary_id)
        model_id = f"{request.session_id}:train:{request.model_seq_id}"  # the SDK derives the same id
        request_id = await api.create_future(
            session=session,
            request_type=types.RequestType.CREATE_MODEL,
            model_id=model_id,
            request_data=types.CreateModelInput(lora_config=types.LoraConfig.model_validate(source.lora_config)),
        )
        model = api.ModelDB(
            model_id=model_id,
            base_model=source.base_model,
            lora_config=source.lora_config,
            status="created",
            request_id=request_id,
            session_id=request.session_id,
        )
        session.add(model)
        await session.commit()
        return model_id

    async def load_weights(request: Any, req: Any, session: Any) -> Any:
        model_id = request.model_id or await create_from_checkpoint(request, session)
        fields = request.model_dump(include=set(api.LoadWeightsRequest.model_fields))
        return await original(api.LoadWeightsRequest(**{**fields, "model_id": model_id}), req, session)

    load_weights.__annotations__ = {"request": LoadWeights, "req": fastapi.Request}
    load_weights.__defaults__ = (fastapi.Depends(api.get_session),)
    _replace_route(api.app, "/api/v1/load_weights", load_weights, response_model=api.FutureResponse)


def _patch_sampling_session(api: Any) -> None:
    import fastapi

    original = api.create_sampling_session

    async def create_sampling_session(request: Any, session: Any) -> Any:
        if request.model_path is not None:
            request = request.model_copy(update={"base_model": None})  # one is served
        return await original(request, session)

    create_sampling_session.__annotations__ = {"request": api.CreateSamplingSessionRequest}
    create_sampling_session.__defaults__ = (fastapi.Depends(api.get_session),)
    path, answer = "/api/v1/create_sampling_session", api.CreateSamplingSessionResponse
    _replace_route(api.app, path, create_sampling_session, response_model=answer)


def _patch_checkpoint_ids(api: Any) -> None:
    import fastapi

    routes = {getattr(route, "path", ""): route for route in api.app.router.routes}
    for path in CHECKPOINT_ROUTES:
        endpoint = routes[path].endpoint
        signature = inspect.signature(endpoint)
        unique_id = signature.parameters["unique_id"].replace(
            default=fastapi.Path(..., pattern=SDK_ID_PATTERN, max_length=api.ID_MAX_LENGTH)
        )
        endpoint.__signature__ = signature.replace(parameters=[*_with(signature, unique_id)])
        _replace_route(api.app, path, endpoint)


def _with(signature: inspect.Signature, parameter: inspect.Parameter) -> list[inspect.Parameter]:
    return [parameter if known.name == parameter.name else known for known in signature.parameters.values()]


def patch_server(own: argparse.Namespace) -> Any:
    """Apply changes 1 to 4 and 7 to SkyRL's server module and return it.

    Args:
        own: The launcher's own options, which the engine process inherits.
    """
    api: Any = importlib.import_module("skyrl.tinker.api")
    api._build_uv_run_cmd_engine = functools.partial(_engine_argv, own)
    _patch_sample_promise(api)
    _patch_load_weights(api)
    _patch_checkpoint_ids(api)
    _patch_sampling_session(api)
    return api


def patch_engine() -> None:
    """Apply change 6."""
    classes = _transformers_backend()
    engine: Any = importlib.import_module("skyrl.tinker.engine")
    engine.get_backend_classes = functools.partial(_constant, classes)


def _constant(value: Any, *_arguments: Any, **_settings: Any) -> Any:
    return value


def _transformers_backend() -> tuple[Any, Any]:
    """Return the classes of our own backend and of its settings, which are imported by their path."""
    name = "harbor_gym_engine"
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("engine") / "__init__.py")
    assert spec is not None, "a file of this package"
    assert spec.loader is not None
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    module = importlib.import_module(f"{name}.backend")
    return module.TransformersBackend, module.TransformersConfig


def _forget_unfinished_requests(database_url: str) -> None:
    """Fail the pending requests of an earlier server; the engine would serve them for clients that are gone."""
    database = Path(database_url.removeprefix("sqlite:///"))
    if not database_url.startswith("sqlite:///") or not database.is_file():
        return
    error = '{"error": "the server was restarted", "status": "failed"}'
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'futures'").fetchone():
            connection.execute(
                "UPDATE futures SET status = 'FAILED', result_data = ? WHERE status = 'PENDING'", (error,)
            )


def _tell(own: argparse.Namespace, doing: str) -> None:
    """Write what this process does now into the status file."""
    if own.status_file is not None:
        own.status_file.write_text(f"{os.getpid()} {doing}", encoding="utf-8")


def _run_engine(own: argparse.Namespace, engine_config: Any) -> None:
    from skyrl.tinker.engine import TinkerEngine

    patch_engine()
    _tell(own, "loading the model")
    engine = TinkerEngine(engine_config)
    _tell(own, READY)
    engine.run()


def _run_server(own: argparse.Namespace, engine_config: Any) -> None:
    import uvicorn
    from skyrl.utils.log import get_uvicorn_log_config

    _forget_unfinished_requests(engine_config.database_url)
    api = patch_server(own)
    api.app.state.engine_config = engine_config
    listener = socket.socket(fileno=own.listen_fd) if own.listen_fd is not None else None
    config = uvicorn.Config(
        api.app,
        host=own.host,
        port=own.port,
        log_config=get_uvicorn_log_config(),
        access_log=False,
        timeout_keep_alive=api.HTTP_KEEP_ALIVE_TIMEOUT_SECONDS,
        timeout_graceful_shutdown=_GRACEFUL_SHUTDOWN_SEC,
    )
    uvicorn.Server(config).run(sockets=None if listener is None else [listener])


def main(argv: list[str] | None = None) -> None:
    """Run the server, or with ``--engine`` its engine process.

    Raises:
        SystemExit: SkyRL is not the supported version, or the parent has ended.
    """
    own, _ = _own_options().parse_known_args(argv)
    if own.die_with_parent is not None:
        die_with_parent(own.die_with_parent)
    checked = {"server": own.verify or not own.engine, "engine": own.verify or own.engine}
    _tell(own, f"importing the {'engine' if own.engine else 'server'}'s packages")
    if problems := verify_skyrl(**checked):
        raise SystemExit("cannot start the embedded training server:\n  " + "\n  ".join(problems))
    if own.verify:
        return
    from skyrl.tinker.config import EngineConfig, add_model

    parser = argparse.ArgumentParser(parents=[_own_options()], allow_abbrev=False)
    add_model(parser, EngineConfig)
    values = vars(parser.parse_args(argv))
    engine_config = EngineConfig.model_validate({k: v for k, v in values.items() if k in EngineConfig.model_fields})
    (_run_engine if own.engine else _run_server)(own, engine_config)


if __name__ == "__main__":
    main()
