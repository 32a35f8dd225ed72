"""What the writer writes is what Prometheus' own Python parsers read, in both formats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from supervisor.core.histogram import histogram
from supervisor.metrics import families as f
from supervisor.metrics.sheet import Memo, Sheet

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(page: str, *, openmetrics: bool) -> Samples:
    read = read_openmetrics if openmetrics else read_text
    found: Samples = {}
    for family in read(page):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"written twice: {key}"
            found[key] = sample.value
    return found


def both(sheet: Sheet) -> Samples:
    text = samples(sheet.write(openmetrics=False), openmetrics=False)
    assert text == samples(sheet.write(openmetrics=True), openmetrics=True)
    return text


def test_a_gauge_with_labels() -> None:
    sheet = Sheet(Memo())
    sheet.add(f.DISK_FREE, 1.5e12, "log")

    assert both(sheet) == {("sglsup_disk_free_bytes", (("use", "log"),)): 1.5e12}


def test_no_fact_is_no_sample_and_no_sample_no_family() -> None:
    sheet = Sheet(Memo())
    sheet.add(f.ETA, None, "kimi")

    assert sheet.write(openmetrics=False) == ""
    assert sheet.write(openmetrics=True) == "# EOF\n"


def test_a_state_set_has_one_one() -> None:
    sheet = Sheet(Memo())
    sheet.one_of(f.GPU_FEED, ("seeing", "blind", "absent"), "blind")

    assert [value for _, value in sorted(both(sheet).items())] == [0, 1, 0]


def test_a_counter_is_there_before_its_first_event() -> None:
    sheet = Sheet(Memo())
    sheet.each(f.RESTARTS, ("crash", "config"), {"crash": 2}, "kimi")

    assert both(sheet) == {
        ("sglsup_server_restarts_total", (("reason", "config"), ("server", "kimi"))): 0,
        ("sglsup_server_restarts_total", (("reason", "crash"), ("server", "kimi"))): 2,
    }


def test_buckets_are_cumulative_and_end_at_infinity() -> None:
    sheet, observed = Sheet(Memo()), histogram(f.STOP.buckets)
    for value in (0.1, 0.5, 7.0, 10_000.0):
        observed.add(value, f.STOP.buckets)
    sheet.histogram(f.STOP, observed, "kimi")
    sheet.histogram(f.STOP, None, "other")

    found = both(sheet)
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name.endswith("_bucket") and ("server", "kimi") in labels
    }
    assert (buckets[0.5], buckets[5.0], buckets[10.0], buckets[math.inf]) == (2, 2, 3, 4)
    assert list(buckets.values()) == sorted(buckets.values())
    assert found["sglsup_server_stop_duration_seconds_count", (("server", "kimi"),)] == 4
    assert found["sglsup_server_stop_duration_seconds_count", (("server", "other"),)] == 0


def test_an_info() -> None:
    sheet = Sheet(Memo())
    sheet.add(f.BUILD, 1, "0.1.0", "3.11")

    assert set(both(sheet).values()) == {1}
    assert "# TYPE sglsup_build_info gauge" in sheet.write(openmetrics=False)
    assert "# TYPE sglsup_build info" in sheet.write(openmetrics=True)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=30), st.floats(allow_nan=False))
def test_any_text_is_a_label_and_any_number_a_value(text: str, value: float) -> None:
    sheet = Sheet(Memo())
    sheet.add(f.SERVER, value, "kimi", text, "", "", "", "", "")

    page = sheet.write(openmetrics=False)
    assert page.count("\n") == 3, "nothing in a label may begin a line"
    assert list(samples(page, openmetrics=False).values()) == [value]


@pytest.mark.parametrize("value", [0, 1, -9, 0.1, 1e300, math.inf, -math.inf, 1764420000.123])
def test_numbers_come_back_as_they_were(value: float) -> None:
    sheet = Sheet(Memo())
    sheet.add(f.START_TIME, value)

    assert list(both(sheet).values()) == [value]


def test_a_surrogate_does_not_break_the_page() -> None:
    sheet = Sheet(Memo())
    sheet.add(f.SERVER, 1, "kimi", "\udcff", "", "", "", "", "")

    assert b"?" in sheet.write(openmetrics=False).encode()


def test_what_is_remembered_never_shows_old_values() -> None:
    memo = Memo()
    for crashes in (0, 1, 1, 2):
        sheet = Sheet(memo)
        sheet.each(f.RESTARTS, ("crash",), {"crash": crashes}, "kimi")
        sheet.one_of(f.GPU_FEED, ("seeing", "blind"), "blind" if crashes else "seeing")
        assert both(sheet) == {
            ("sglsup_server_restarts_total", (("reason", "crash"), ("server", "kimi"))): crashes,
            ("sglsup_gpu_feed", (("sight", "seeing"),)): int(not crashes),
            ("sglsup_gpu_feed", (("sight", "blind"),)): int(bool(crashes)),
        }


def test_a_book_is_written_again_only_when_it_is_another_object() -> None:
    memo, written = Memo(), []

    def write(sheet: Sheet) -> None:
        written.append(1)
        sheet.add(f.STARTS, len(written), "kimi")

    first, second = object(), object()
    for source, starts in ((first, 1), (first, 1), (second, 2), (second, 2)):
        sheet = Sheet(memo)
        sheet.book("kimi", source, write)
        assert both(sheet) == {("sglsup_server_starts_total", (("server", "kimi"),)): starts}
    assert len(written) == 2


def test_memory_of_servers_that_come_and_go_is_bounded() -> None:
    memo = Memo()
    for number in range(25_000):
        memo.series["x", (str(number),)] = "x"
    Sheet(memo)

    assert memo.series == {}
