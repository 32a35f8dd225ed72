"""One traceback, line by line: its chain, its message, its functions, and the stacks of Python's fault handler."""

from __future__ import annotations

from supervisor.core.log.traceback import HEAD, TracebackBlock

CHAINED = "During handling of the above exception, another exception occurred:"


def block(*lines: str) -> TracebackBlock:
    first, *rest = lines
    it = TracebackBlock(1, "TP0", "", first)
    for number, line in enumerate(rest, 2):
        assert it.takes(line, number), line
    return it


def frame(file: str, function: str) -> str:
    return f'  File "{file}", line 7, in {function}'


def plain(*end: str) -> TracebackBlock:
    return block(HEAD, frame("/venv/lib/sglang/srt/run.py", "main"), "    go()", *end)


def test_the_exceptions_own_line_ends_it_and_names_it_without_its_module() -> None:
    it = plain("torch.cuda.OutOfMemoryError: CUDA out of memory.")
    assert it.complete
    assert (it.root.type, it.root.message, it.root.line) == ("OutOfMemoryError", "CUDA out of memory.", 4)
    assert it.frames == "sglang/srt/run.py:main"
    assert plain("ValueError: no").summary == "ValueError: no"
    assert plain("KeyboardInterrupt").summary == "KeyboardInterrupt"


def test_a_message_of_several_lines_is_kept_without_its_blank_ones() -> None:
    it = plain("ValueError: these are missing:", "", "  config.json", "  tokenizer.json")
    assert it.root.message == "these are missing:\n  config.json\n  tokenizer.json"
    assert it.root.type == "ValueError"


def test_a_message_without_end_is_kept_in_part() -> None:
    it = plain("ValueError: x", *["y" * 1000] * 20)
    assert 4096 <= len(it.root.message) <= 4096 + 1001


def test_a_bare_assertion_is_told_by_its_source() -> None:
    it = block(HEAD, frame("/a/b/c/run.py", "main"), "    assert tp % ranks == 0", "    ^^^^^^^^^^^^", "AssertionError")
    assert it.root.message == "(assert tp % ranks == 0)"
    assert plain("AssertionError").root.message == "", "what it called is no assertion"


def test_of_a_chain_the_first_is_the_root_and_the_last_ended_it() -> None:
    it = plain("KeyError: 'a'", "", CHAINED, "", HEAD, frame("/x/y/z/late.py", "late"), "RuntimeError: cannot go on")
    assert (it.root.text, it.last.text) == ("KeyError: 'a'", "RuntimeError: cannot go on")
    assert it.frames == "sglang/srt/run.py:main y/z/late.py:late"
    assert it.fields()["root"] == "KeyError"
    assert it.fields()["exception"] == "RuntimeError"


def test_somebody_elses_traceback_is_not_its_own() -> None:
    it = plain("KeyError: 'a'")
    assert not it.takes(HEAD, 9)
    assert it.line == 4


def test_a_crash_tells_the_stack_of_the_thread_that_failed_newest_last() -> None:
    it = block(
        "Fatal Python error: Segmentation fault",
        "",
        "Thread 0x00007f01 (most recent call first):",
        '  File "/x/y/z/idle.py", line 3 in wait',
        "Current thread 0x00007f02 (most recent call first):",
        '  File "/x/y/z/kernel.py", line 3 in launch',
        '  File "/x/y/z/model.py", line 9 in forward',
    )
    assert (it.root.type, it.root.message) == ("Fatal Python error", "Segmentation fault")
    assert it.root.frames == ["y/z/model.py:forward", "y/z/kernel.py:launch"]


def test_a_stack_whose_head_is_not_in_the_log_is_of_nobody_until_a_thread_is_named() -> None:
    it = block("Thread 0x00007f01 (most recent call first):", '  File "/x/y/z/idle.py", line 3 in wait')
    assert it.root.frames == []
    assert it.root.message == "stack of the current thread"
    headless = block('  File "/x/y/z/idle.py", line 3 in wait', '  File "/x/y/z/more.py", line 3 in more')
    assert headless.root.frames == []


def test_what_is_cut_off_tells_the_innermost_function() -> None:
    assert plain().summary == "traceback cut off in sglang/srt/run.py:main"
    assert block(HEAD).summary == "traceback cut off"


def test_a_traceback_does_not_grow_without_end() -> None:
    it = block(HEAD)
    taken = sum(it.takes(frame("/a/b/c/deep.py", "recurse"), number) for number in range(2, 2000))
    assert taken == 599
    assert len(it.fields()["frames"]) <= 1500


def test_the_marks_of_a_group_of_exceptions_are_not_its_text() -> None:
    it = block(
        f"  + Exception Group {HEAD}",
        '  |   File "/x/y/z/a.py", line 1, in main',
        "  |     go()",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
    )
    assert it.root.text == "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)"
    assert it.frames == "y/z/a.py:main"


def test_a_record_goes_on_with_a_chain_that_was_announced_and_with_no_other() -> None:
    it = plain("KeyError: 'a'")
    assert it.goes_on(CHAINED)
    assert it.goes_on("  ")
    assert not it.goes_on(HEAD)
    assert not it.goes_on("Load weight begin.")
    assert it.takes(CHAINED, 5)
    assert it.goes_on(HEAD)
    assert not it.goes_on("Load weight begin.")
    begun = block(HEAD, frame("/x/y/z/a.py", "main"))
    for text, more in (("    go()", True), ("", True), ("ValueError: no", True), ("Load weight begin.", False)):
        assert begun.goes_on(text) is more, text
