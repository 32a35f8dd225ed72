"""What was found out about one start before it: values only, most of them read from disk by `edge.inspect`.

What could not be found out is None or empty and named in `skipped`: unknown is never a finding.
"""

from __future__ import annotations

import enum

import msgspec

from supervisor.profile import CommandFacts


class ModelKind(enum.StrEnum):
    """What a model's path names."""

    FOLDER = "folder"
    FILE = "file"
    HUB = "hub"  # an id of a model hub; `folder` is its copy in the cache, "" without one
    REMOTE = "remote"  # s3://, gs:// and so on
    MISSING = "missing"
    FORBIDDEN = "forbidden"  # the server's user may not look


class RopeFacts(msgspec.Struct, frozen=True):
    """A model's stretching of positions. `original`: the config names the unstretched length too."""

    factor: float = 1.0
    original: bool = False
    kind: str = ""


class ConfigFacts(msgspec.Struct, frozen=True):
    """A model's config.json. `numbers` are those of the part that describes the text model."""

    architectures: tuple[str, ...] = ()
    model_type: str = ""
    numbers: dict[str, float] = {}
    rope: RopeFacts | None = None
    quantization: str = ""
    quantization_block: tuple[int, ...] = ()


class FileFacts(msgspec.Struct, frozen=True):
    """One file of weights. `problem` says why it cannot be one, as far as its header and size tell."""

    name: str
    bytes: int = 0
    problem: str = ""
    wide_bytes: int = 0  # of tensors with four or eight bytes a number: the engine may load them narrower


class ModelFacts(msgspec.Struct, frozen=True):
    """A model on disk. `role` is what the command uses it for."""

    role: str
    path: str
    kind: ModelKind
    folder: str = ""
    config: ConfigFacts | None = None
    config_problem: str = ""
    files: tuple[FileFacts, ...] = ()
    missing: tuple[str, ...] = ()  # files that the index names and nobody finds
    unreadable: tuple[str, ...] = ()  # to the server's user
    unfinished: tuple[str, ...] = ()  # a download's partial files
    index_bytes: int | None = None
    index_problem: str = ""
    tokenizer: bool | None = None  # None: not looked for
    other_formats: bool = False  # there are files of a format that is not looked into
    cache: str = ""  # where a hub's copies lie
    cache_free_bytes: int | None = None

    @property
    def bytes(self) -> int:
        """All its weights."""
        return sum(file.bytes for file in self.files)


class FlagFacts(msgspec.Struct, frozen=True):
    """The options that the installed engine takes, read from its source. `complete`: no option is made up at run time.

    `deprecated` maps an option to what it says about itself.
    """

    known: tuple[str, ...] = ()
    deprecated: dict[str, str] = {}
    complete: bool = False


class EngineFacts(msgspec.Struct, frozen=True):
    """The engine as installed for the command's interpreter. version "" = not found."""

    version: str = ""
    location: str = ""
    distributions: dict[str, str] = {}  # of those asked for: installed versions
    pins: dict[str, str] = {}  # of those asked for: the version that the engine's own metadata demand
    flags: FlagFacts | None = None
    class_words: tuple[str, ...] | None = None  # which words asked for are in the file that defines the model's class


class ProgramFacts(msgspec.Struct, frozen=True):
    """What the command starts first. `problem` says why it cannot be started."""

    path: str = ""
    problem: str = ""
    directory_problem: str = ""


class LimitFacts(msgspec.Struct, frozen=True):
    """A resource limit that the processes will get; -1 is unlimited."""

    soft: int
    hard: int


class DeviceFacts(msgspec.Struct, frozen=True):
    """A GPU's memory. `free_bytes` None: unknown, or held by a server that will have ended by then."""

    index: int
    name: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None


class MachineFacts(msgspec.Struct, frozen=True):
    """The host. None = could not be found out. `devices` None: no look at the GPUs."""

    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    shared_memory_bytes: int | None = None
    temporary: str = ""
    temporary_free_bytes: int | None = None
    open_files: LimitFacts | None = None
    locked_memory: LimitFacts | None = None
    compiler: str | None = None  # "" = none found
    stack_reader: str | None = None
    driver: str = ""
    devices: tuple[DeviceFacts, ...] | None = None


class PortFacts(msgspec.Struct, frozen=True):
    """A port that the server will bind and that is taken: by a listening process, or by another server's plans."""

    port: int
    purpose: str
    holder: str = ""
    by_engine: bool = False
    other_server: str = ""
    other_purpose: str = ""


class Request(msgspec.Struct, frozen=True):
    """What `edge.inspect` is to look at, as the server's user, in the server's directory and environment."""

    program: str
    starter: str = ""
    by_module: bool = False
    directory: str = "/"
    user: str = ""
    group: str = ""
    environment: dict[str, str] = {}
    models: dict[str, str] = {}  # role → path
    files: dict[str, str] = {}  # further files that must be readable: what for → path
    tokenizer_names: tuple[str, ...] = ()
    package: str = ""
    distributions: tuple[str, ...] = ()
    flag_sources: tuple[str, ...] = ()
    class_sources: tuple[str, ...] = ()
    class_words: tuple[str, ...] = ()
    compilers: tuple[str, ...] = ()
    stack_reader: str = ""
    elsewhere: bool = False


class Looked(msgspec.Struct, frozen=True):
    """The answer to a request. `skipped` says in words what was not looked at, and why."""

    program: ProgramFacts = ProgramFacts()
    models: tuple[ModelFacts, ...] = ()
    missing_files: dict[str, str] = {}  # further files that cannot be read: what for → why
    engine: EngineFacts = EngineFacts()
    machine: MachineFacts = MachineFacts()
    skipped: tuple[str, ...] = ()


class Inspected(msgspec.Struct, frozen=True):
    """Everything that the rules judge by."""

    server: str
    arguments: tuple[str, ...] = ()
    facts: CommandFacts = CommandFacts(0, "")
    environment: dict[str, str] = {}
    own_environment: tuple[str, ...] = ()  # names that the server's configuration sets itself
    gpus: tuple[int, ...] = ()
    gpu_count: int = 0
    user: str = ""
    looked: Looked = Looked()
    ports: tuple[PortFacts, ...] = ()

    @property
    def program(self) -> ProgramFacts:
        """What the command starts first."""
        return self.looked.program

    @property
    def models(self) -> tuple[ModelFacts, ...]:
        """All models that the command names."""
        return self.looked.models

    @property
    def engine(self) -> EngineFacts:
        """The engine as installed."""
        return self.looked.engine

    @property
    def machine(self) -> MachineFacts:
        """The host."""
        return self.looked.machine

    def model(self, role: str) -> ModelFacts | None:
        """The model of that role."""
        return next((model for model in self.models if model.role == role), None)
