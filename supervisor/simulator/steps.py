"""Lists the steps of a scheduler's start-up, with the lines each one prints, for a dialect and a command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from supervisor.simulator import noise
from supervisor.simulator.bars import BarStep, capture_bar, loading_bar, plain_bar
from supervisor.simulator.beat import Beat
from supervisor.simulator.dialect import Dialect, Who
from supervisor.simulator.options import Options

GPU_GB = 139.6
_DECODE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128, 160, 192, 224, 256)
_SPECULATIVE_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 40, 44, 48)
_PREFILL_SIZES = (4, 8, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192)
_LAST = 0.999
_SITE = "/opt/sglang/lib/python3.12/site-packages"


class Step(NamedTuple):
    """One stretch between two collectives: no rank leaves it before all have reached its end."""

    phase: str
    seconds: float
    beats: tuple[Beat, ...]
    held_gb: float  # GPU memory each rank holds when the step ends


class Memory:
    """Counts a rank's free GPU memory down as the steps are written."""

    def __init__(self) -> None:
        self.avail_gb = GPU_GB

    def take(self, gb: float) -> float:
        self.avail_gb -= gb
        return gb

    @property
    def held_gb(self) -> float:
        return GPU_GB - self.avail_gb


class StepWriter:
    """Writes the steps of one start, in the dialect's order."""

    def __init__(self, options: Options, dialect: Dialect, with_jit: bool) -> None:
        self._options = options
        self._dialect = dialect
        self._with_jit = with_jit
        self._memory = Memory()
        self._target_gb = 1040.0 / 8 * 0.62 if options.tp >= 8 else 24.0
        self._kv_tokens = 402_184 if options.tp >= 8 else 1_212_480

    def steps(self) -> tuple[Step, ...]:
        if self._dialect.draft_before_pool:
            return tuple(self._new_order())
        return tuple(self._old_order())

    def _old_order(self) -> Iterator[Step]:
        """Up to 0.5.13 the draft is loaded after the target's capture."""
        yield self._imports()
        yield self._dist_init()
        yield self._weights("weights", "DeepseekV3ForCausalLM", self._target_gb)
        yield self._pool("memory-pool", 32.0)
        yield from self._jit()
        yield from self._target_capture_old()
        if self._options.speculative:
            yield self._weights("draft-weights", self._draft_class, 2.1, self._init_lines(0.0, 0.02))
            yield self._pool("draft-pool", 1.3)
            yield from self._draft_captures_old()
        yield from self._disaggregation()
        yield self._ready()

    def _new_order(self) -> Iterator[Step]:
        """From 0.5.14 all weights come first, then all pools, then all captures."""
        draft = self._options.speculative
        yield self._imports()
        yield self._dist_init()
        yield self._weights("weights", "DeepseekV3ForCausalLM", self._target_gb)
        if draft:
            yield self._weights("draft-weights", self._draft_class, 2.1)
        yield self._pool("memory-pool", 32.0)
        if draft:
            yield self._pool("draft-pool", 1.3)
        yield from self._jit()
        yield from self._captures_new()
        yield from self._disaggregation()
        yield self._ready()

    @property
    def _draft_class(self) -> str:
        eagle3 = self._options.speculative_algorithm.upper() == "EAGLE3"
        return "LlamaForCausalLMEagle3" if eagle3 else "DeepseekV3ForCausalLMNextN"

    def _step(self, phase: str, beats: Iterable[Beat], seconds: float | None = None) -> Step:
        length_s = self._options.seconds(phase) if seconds is None else seconds
        return Step(phase, length_s, tuple(sorted(beats, key=lambda beat: beat.at)), self._memory.held_gb)

    def _imports(self) -> Step:
        beats = []
        if self._dialect.serve_warning:
            text = f"{_SITE}/sglang/srt/layers/quantization/gguf.py:76: UserWarning: Only CUDA supports GGUF.\n"
            beats = [Beat(0.8, text + '  warnings.warn(f"Only CUDA supports GGUF.")\n', raw=True)]
        return self._step("launch", beats, self._options.seconds("import"))

    def _init_lines(self, start: float, end: float) -> list[Beat]:
        """From 0.5.21 `parallel`, before the models exist; earlier once per model runner, the draft's included."""
        who = self._dialect.target_lines
        seconds = self._options.seconds("dist-init") * (end - start)
        if self._dialect.parallel_init:
            ends = f"Init parallel ends. elapsed={seconds:.2f} s"
            baseline = Beat(_LAST, "Memory baseline taken. mem usage=0.97 GB")
            return [Beat(start, "Init parallel begin."), Beat(end, ends), baseline]
        elapsed = f"elapsed={seconds:.2f} s, " if self._dialect.elapsed_in_load else ""
        ends = f"Init torch distributed ends. {elapsed}mem usage=0.97 GB"
        return [Beat(start, "Init torch distributed begin.", who), Beat(end, ends, who)]

    def _dist_init(self) -> Step:
        self._memory.take(1.29)
        beats = self._init_lines(0.0, 0.9)
        world = self._options.tp * self._options.pp
        if world > 1:
            beats += noise.communicators(world, self._options.nnodes)
        return self._step("dist-init", [*beats, *noise.ignored_imports()])

    def _weights(self, phase: str, model: str, gb: float, before: Iterable[Beat] = ()) -> Step:
        """The bar ends at 80 % of the time: the rest is the silent repacking of the weights."""
        who = self._dialect.target_lines
        seconds = self._options.seconds(phase)
        begin = Beat(0.03, f"Load weight begin. avail mem={self._memory.avail_gb:.2f} GB", who)
        loud = noise.loud_but_harmless() if phase == "weights" else []
        total = 1 if phase == "draft-weights" else self._options.shards
        bar = _beats_of_bar(loading_bar(self._bar_word, total, seconds * 0.7, self._dialect.newline_bar), 0.04, 0.8)
        self._memory.take(gb)
        return self._step(
            phase, [*before, begin, *loud, *bar, Beat(_LAST, self._load_end(model, gb, seconds * 0.97), who)]
        )

    @property
    def _bar_word(self) -> str:
        # Multi-threaded loading is the default from 0.5.10.post1, the release that also dropped the line feeds.
        return "Loading safetensors checkpoint shards" if self._dialect.newline_bar else "Multi-thread loading shards"

    def _load_end(self, model: str, gb: float, elapsed_s: float) -> str:
        elapsed = f"elapsed={elapsed_s:.2f} s, " if self._dialect.elapsed_in_load else ""
        kind = f"type={model}, " if self._dialect.new_wording else f"type={model}, dtype=torch.bfloat16, "
        return f"Load weight end. {elapsed}{kind}avail mem={self._memory.avail_gb:.2f} GB, mem usage={gb:.2f} GB."

    def _pool(self, phase: str, gb: float) -> Step:
        dtype = "dtype: torch.bfloat16, " if self._dialect.new_wording else ""
        half = gb / 2
        sizes = f"#tokens: {self._kv_tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"
        self._memory.take(gb)
        end = f"Memory pool end. avail mem={self._memory.avail_gb:.2f} GB"
        beats = [
            Beat(0.4, f"KV Cache is allocated. {dtype}{sizes}"),
            Beat(0.9, end, self._dialect.target_lines),
        ]
        return self._step(phase, beats)

    def _jit(self) -> Iterator[Step]:
        if not self._with_jit:
            return
        seconds = self._options.seconds("jit")
        begin = "Entering DeepGEMM JIT Pre-Compile session. It may take a long time (typically 10-20 mins) if you "
        begin += "have not run `sglang.compile_deep_gemm`. It is recommended to run `sglang.compile_deep_gemm` with "
        begin += "same args as `sglang.launch_server` for pre-compilation to reduce the overhead if you have not run "
        begin += "it before."
        kernel = "Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=24576, K=1536, num_groups=1 with all Ms."
        bar = _beats_of_bar(plain_bar("DeepGEMM warmup", 16, seconds), 0.1, 0.95)
        yield self._step("jit", [Beat(0.0, begin, Who.FIRST), Beat(0.05, kernel, Who.FIRST), *bar])

    def _target_capture_old(self) -> Iterator[Step]:
        """One pair of lines for decode and, with a draft, verify: up to 0.5.13 nothing in the text tells which."""
        if self._options.disable_cuda_graph:
            return
        phase = "verify-graph" if self._options.speculative else "target-graph"
        yield self._capture_old(phase, "", self._dialect.target_lines, 2.4)

    def _draft_captures_old(self) -> Iterator[Step]:
        if self._options.disable_cuda_graph:
            return
        if self._options.speculative_num_steps > 1:
            yield self._capture_old("draft-graph", "draft ", Who.ALL, 0.6)
        yield self._capture_old("draft-extend-graph", "draft extend ", Who.ALL, 0.5)

    def _capture_old(self, phase: str, role: str, who: Who, gb: float) -> Step:
        seconds = self._options.seconds(phase)
        avail_gb = self._memory.avail_gb
        begin = f"Capture {role}cuda graph begin. This can take up to several minutes. avail mem={avail_gb:.2f} GB"
        self._memory.take(gb)
        usage = f"mem usage={gb:.2f} GB. avail mem={self._memory.avail_gb:.2f} GB."
        end = f"Capture {role}cuda graph end. Time elapsed: {seconds * 0.97:.2f} s. {usage}"
        beats = [Beat(0.0, begin, who), *self._sizes_line(role), *self._decode_bar(seconds, avail_gb)]
        return self._step(phase, [*beats, *self._registering(), Beat(_LAST, end, who)])

    def _registering(self) -> list[Beat]:
        """Custom all-reduce registers its buffers after a capture; there is none with one rank."""
        if self._options.tp == 1:
            return []
        return [Beat(0.97, f"Registering {len(self._sizes) * 62} cuda graph addresses", self._dialect.registering)]

    def _sizes_line(self, role: str) -> list[Beat]:
        if role:
            return []
        return [Beat(0.005, f"Capture cuda graph bs {list(self._sizes)}", Who.FIRST)]

    @property
    def _sizes(self) -> tuple[int, ...]:
        return _SPECULATIVE_SIZES if self._options.speculative else _DECODE_SIZES

    def _decode_bar(self, seconds: float, avail_gb: float) -> list[Beat]:
        bar = capture_bar("Capturing batches", "bs", self._sizes, avail_gb, seconds * 0.9)
        return _beats_of_bar(bar, 0.01, 0.96)

    def _captures_new(self) -> Iterator[Step]:
        """Prefill graph first, then decode or verify, then the draft's (order of the recorded 0.5.15 runs)."""
        if self._options.disable_cuda_graph:
            return
        speculative = self._options.speculative
        yield self._prefill_capture("target-graph", "target", 1.06)
        if not speculative:
            yield self._capture_new("target-graph", "target decode", 1, Who.ALL, 2.4)
            return
        tokens = self._options.draft_tokens
        yield self._capture_new("verify-graph", "target verify", tokens, Who.ALL, 2.4)
        yield self._prefill_capture("draft-graph", "draft", 0.9)
        if self._options.speculative_num_steps > 1:
            topk = self._options.speculative_eagle_topk
            yield self._capture_new("draft-graph", "draft decode", topk, Who.FIRST, 0.6)
        yield self._capture_new("draft-extend-graph", "draft extend", tokens, Who.FIRST, 0.5)

    def _prefill_capture(self, phase: str, role: str, gb: float) -> Step:
        seconds = self._options.seconds(phase) * (0.4 if role == "target" else 0.1)
        avail_gb = self._memory.avail_gb
        sizes = list(_PREFILL_SIZES)
        what = f"Capture {role} prefill CUDA graph"
        begin = f"{what} begin. backend=breakable, num_tokens={sizes}, avail mem={avail_gb:.2f} GB"
        self._memory.take(gb)
        end = f"{what} end. elapsed={seconds * 0.97:.2f} s, mem usage={gb:.2f} GB, "
        end += f"avail mem={self._memory.avail_gb:.2f} GB."
        bar = capture_bar("Capturing num tokens", "num_tokens", _PREFILL_SIZES, avail_gb, seconds * 0.9)
        return self._step(phase, [Beat(0.0, begin), *_beats_of_bar(bar, 0.01, 0.96), Beat(_LAST, end)], seconds)

    def _capture_new(self, phase: str, what: str, tokens: int, who: Who, gb: float) -> Step:
        """From 0.5.22 the target's begin line lost its sizes and its end line got them; the draft's kept both."""
        seconds = self._options.seconds(phase) * 0.6
        sizes = f"bs={list(self._sizes)}, "
        in_begin, in_end = (sizes, "") if what.startswith("draft") else ("", sizes)
        avail_gb = self._memory.avail_gb
        begin = f"Capture {what} CUDA graph begin. backend=full, num_tokens_per_req={tokens}, {in_begin}"
        begin += f"avail mem={avail_gb:.2f} GB"
        self._memory.take(gb)
        end = f"Capture {what} CUDA graph end. {in_end}elapsed={seconds * 0.97:.2f} s, mem usage={gb:.2f} GB, "
        end += f"avail mem={self._memory.avail_gb:.2f} GB."
        beats = [Beat(0.0, begin, who), *self._decode_bar(seconds, avail_gb), Beat(_LAST, end, who)]
        return self._step(phase, [*beats, *self._registering()], seconds)

    def _disaggregation(self) -> Iterator[Step]:
        mode = self._options.disaggregation_mode
        if mode == "null":
            return
        lines = ["Mooncake transfer engine is initialized with 8 RDMA devices", f"KV manager of {mode} is up"]
        yield self._step("pd-init", [Beat(0.2 + 0.3 * n, text) for n, text in enumerate(lines)])

    def _ready(self) -> Step:
        """The last line of a healthy engine; `launch` keeps its vocabulary: no phase of its own."""
        running = 48 if self._options.speculative else 2048
        text = f"max_total_num_tokens={self._kv_tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        text += f"max_running_requests={running}, context_len=131072, available_gpu_mem={self._memory.avail_gb:.2f} GB"
        beats = [Beat(0.5, text, Who.FIRST)]
        if self._dialect.new_wording:
            tree = "Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False "
            beats.append(Beat(0.9, tree + "hicache_attached=False"))
        return self._step("ready", beats, 0.2)


def _beats_of_bar(bar: Iterable[BarStep], start: float, end: float) -> list[Beat]:
    return [Beat(start + (end - start) * step.at, step.text, Who.FIRST, raw=True) for step in bar]
