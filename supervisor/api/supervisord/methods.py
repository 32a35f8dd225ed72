"""The table of supervisord's methods, and calling one by its name."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec

from supervisor.api.access import Role
from supervisor.api.operation import Call
from supervisor.api.supervisord import changes, files, processes
from supervisor.api.supervisord.codec import FaultCode, FaultError, xml_text

API_VERSION = "3.0"  # supervisorctl refuses to talk to any other

Handler = Callable[..., Awaitable[Any]]


class Method(msgspec.Struct, frozen=True):
    """One method: who may call it and what does it. Its parameters are the handler's own after the call."""

    handler: Handler
    role: Role = Role.READ


async def dispatch(call: Call, name: str, parameters: tuple[Any, ...]) -> Any:
    """Call a method by its name. Raises FaultError."""
    method = _method(name)
    server = _server_of(parameters)
    if (call.role_for(server) if server else call.role) < method.role:
        raise FaultError(FaultCode.FAILED, f"{name} needs the role {method.role.name.lower()}")
    signature = inspect.signature(method.handler)
    try:
        signature.bind(call, *parameters)
    except TypeError:
        raise FaultError(FaultCode.INCORRECT_PARAMETERS, name) from None
    if not all(_fits(kind.annotation, value) for kind, value in _pairs(signature, parameters)):
        raise FaultError(FaultCode.INCORRECT_PARAMETERS, name)
    if method.role is not Role.READ:
        call = await call.noted(name, server)
    return await method.handler(call, *parameters)


def _server_of(parameters: tuple[Any, ...]) -> str:
    """The server that a call is about, "" for all of them: methods on processes and groups name it first."""
    first = parameters[0] if parameters else ""
    return first.partition(":")[0] if isinstance(first, str) else ""


def _method(name: str) -> Method:
    method = METHODS.get(name)
    if method is None:
        raise FaultError(FaultCode.UNKNOWN_METHOD, name[:80])
    return method


def _pairs(signature: inspect.Signature, parameters: tuple[Any, ...]) -> Iterable[tuple[inspect.Parameter, Any]]:
    return zip(list(signature.parameters.values())[1:], parameters, strict=False)


def _fits(annotation: str, value: object) -> bool:
    """By the written annotation of the handler's parameter: the four types that the methods take."""
    match annotation:
        case "str":
            return isinstance(value, str)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "bool":
            return isinstance(value, bool | int)
        case _:
            return isinstance(value, list)


async def get_api_version(call: Call) -> str:
    return API_VERSION


async def get_supervisor_version(call: Call) -> str:
    """Ours, not supervisord's: who asks wants to know what runs here."""
    return call.control.daemon_info().version


async def get_identification(call: Call) -> str:
    return "supervisor"


async def get_state(call: Call) -> dict[str, Any]:
    return {"statecode": 1, "statename": "RUNNING"}


async def get_pid(call: Call) -> int:
    return call.control.daemon_info().pid


async def shut_down(call: Call) -> bool:
    await call.control.shutdown(call.by)
    return True


async def restart(call: Call) -> bool:
    """Brings the file into force. Servers that it does not change go on: a start costs minutes here."""
    await changes.update(call)
    return True


async def list_methods(call: Call) -> list[str]:
    return sorted(METHODS)


async def method_help(call: Call, name: str) -> str:
    return inspect.getdoc(_method(name).handler) or f"see {name} of supervisord 4.3"


async def method_signature(call: Call, name: str) -> list[str]:
    return ["struct", *list(inspect.signature(_method(name).handler).parameters)[1:]]


async def multicall(call: Call, calls: list[Any]) -> list[Any]:
    """Several calls one after the other; each failure stands in its own place."""
    return [await _one_of_many(call, one) for one in calls]


async def _one_of_many(call: Call, one: Any) -> Any:
    try:
        if not isinstance(one, dict) or not isinstance(one.get("params", []), list):
            raise FaultError(FaultCode.INCORRECT_PARAMETERS, "expected methodName and params")
        if one.get("methodName") == "system.multicall":
            raise FaultError(FaultCode.INCORRECT_PARAMETERS, "Recursive system.multicall forbidden")
        return await dispatch(call, str(one.get("methodName")), tuple(one.get("params", [])))
    except FaultError as fault:
        return {"faultCode": int(fault.code), "faultString": xml_text(str(fault))}


METHODS: dict[str, Method] = {
    "supervisor.getAPIVersion": Method(get_api_version),
    "supervisor.getVersion": Method(get_api_version),
    "supervisor.getSupervisorVersion": Method(get_supervisor_version),
    "supervisor.getIdentification": Method(get_identification),
    "supervisor.getState": Method(get_state),
    "supervisor.getPID": Method(get_pid),
    "supervisor.readLog": Method(files.read_main_log),
    "supervisor.readMainLog": Method(files.read_main_log),
    "supervisor.shutdown": Method(shut_down, Role.ADMIN),
    "supervisor.restart": Method(restart, Role.ADMIN),
    "supervisor.reloadConfig": Method(changes.reload_config, Role.ADMIN),
    "supervisor.addProcessGroup": Method(changes.add_group, Role.ADMIN),
    "supervisor.removeProcessGroup": Method(changes.remove_group, Role.ADMIN),
    "supervisor.getProcessInfo": Method(processes.get_process_info),
    "supervisor.getAllProcessInfo": Method(processes.get_all_process_info),
    "supervisor.getAllConfigInfo": Method(changes.get_all_config_info),
    "supervisor.startProcess": Method(processes.start_process, Role.OPERATE),
    "supervisor.startProcessGroup": Method(processes.start_group, Role.OPERATE),
    "supervisor.startAllProcesses": Method(processes.start_all, Role.OPERATE),
    "supervisor.stopProcess": Method(processes.stop_process, Role.OPERATE),
    "supervisor.stopProcessGroup": Method(processes.stop_group, Role.OPERATE),
    "supervisor.stopAllProcesses": Method(processes.stop_all, Role.OPERATE),
    "supervisor.signalProcess": Method(processes.signal_process, Role.OPERATE),
    "supervisor.signalProcessGroup": Method(processes.signal_group, Role.OPERATE),
    "supervisor.signalAllProcesses": Method(processes.signal_all, Role.OPERATE),
    "supervisor.readProcessLog": Method(files.read_process_log),
    "supervisor.readProcessStdoutLog": Method(files.read_process_log),
    "supervisor.readProcessStderrLog": Method(files.no_stderr_log),
    "supervisor.tailProcessLog": Method(files.tail_process_log),
    "supervisor.tailProcessStdoutLog": Method(files.tail_process_log),
    "supervisor.tailProcessStderrLog": Method(files.no_stderr_tail),
    "supervisor.clearProcessLog": Method(files.clear_process_logs, Role.OPERATE),
    "supervisor.clearProcessLogs": Method(files.clear_process_logs, Role.OPERATE),
    "supervisor.clearAllProcessLogs": Method(files.clear_all_logs, Role.OPERATE),
    "system.listMethods": Method(list_methods),
    "system.methodHelp": Method(method_help),
    "system.methodSignature": Method(method_signature),
    "system.multicall": Method(multicall),
}
