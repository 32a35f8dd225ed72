"""Small files of the state directory: old or new and never half, and never lost when they cannot be understood."""

import os

import pytest

from supervisor.smallfile import UnusableFileError, read_json, replace_bytes, replace_json, set_aside


def test_a_value_comes_back(tmp_path):
    path = tmp_path / "made" / "on the way" / "kimi.json"
    replace_json(path, {"a": 1})
    assert read_json(path, dict[str, int]) == {"a": 1}
    assert os.listdir(path.parent) == ["kimi.json"]


def test_what_has_to_outlive_the_machine_is_replaced_as_well(tmp_path):
    replace_bytes(tmp_path / "tally.json", b"{}", durable=True)
    assert read_json(tmp_path / "tally.json", dict[str, int]) == {}


def test_no_file_is_no_value(tmp_path):
    assert read_json(tmp_path / "kimi.json", dict[str, int]) is None


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"a": "x"}', b"[]"])
def test_what_cannot_be_understood_is_moved_aside_and_told(tmp_path, content):
    path = tmp_path / "kimi.json"
    path.write_bytes(content)
    with pytest.raises(UnusableFileError) as told:
        read_json(path, dict[str, int])
    assert str(told.value).startswith(f"cannot use {path}: ")
    assert str(told.value).endswith(f"; moved aside to {tmp_path / 'kimi.broken'}")
    assert (tmp_path / "kimi.broken").read_bytes() == content
    assert read_json(path, dict[str, int]) is None


def test_a_folder_in_its_place_is_unusable_too(tmp_path):
    (tmp_path / "kimi.json").mkdir()
    with pytest.raises(UnusableFileError, match="Is a directory"):
        read_json(tmp_path / "kimi.json", dict[str, int])
    assert (tmp_path / "kimi.broken").is_dir()


def test_a_death_in_between_leaves_the_old_file_and_the_next_write_mends_it(tmp_path):
    path = tmp_path / "kimi.json"
    replace_json(path, {"a": 1})
    (tmp_path / ".kimi.json.new").write_bytes(b'{"a":')  # what a writer that died would leave
    assert read_json(path, dict[str, int]) == {"a": 1}
    replace_json(path, {"a": 2})
    assert read_json(path, dict[str, int]) == {"a": 2}


def test_what_is_half_written_is_not_taken_for_a_record(tmp_path):
    """Directories of records are read by `*.json`."""
    replace_bytes(tmp_path / "kimi.json", b"{}")
    (tmp_path / ".glm.json.new").write_bytes(b"{")
    assert [path.name for path in tmp_path.glob("*.json")] == ["kimi.json"]


def test_a_disk_that_refuses_is_the_callers_affair(tmp_path):
    (tmp_path / "state").write_text("a file where a folder is wanted")
    with pytest.raises(OSError, match="state"):
        replace_bytes(tmp_path / "state" / "kimi.json", b"{}")


def test_what_its_reader_does_not_want_is_moved_aside_as_well(tmp_path):
    path = tmp_path / "kimi.json"
    replace_json(path, {"format": 0})
    problem = set_aside(path, "it has format 0")
    assert str(problem) == f"cannot use {path}: it has format 0; moved aside to {tmp_path / 'kimi.broken'}"
    assert not path.exists()


def test_what_cannot_even_be_moved_is_told_all_the_same(tmp_path):
    assert "cannot use" in str(set_aside(tmp_path / "gone.json", "whatever"))


def test_bytes_go_into_a_directory_that_is_there(tmp_path):
    """Whoever names a place of other people's is told that it is missing; only our own records make theirs."""
    with pytest.raises(FileNotFoundError):
        replace_bytes(tmp_path / "mistaken" / "kimi.conf", b"")
    assert os.listdir(tmp_path) == []


def test_a_mode_is_given_before_anybody_can_read_it(tmp_path):
    path = tmp_path / "kimi.conf"
    replace_bytes(path, b"a", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    replace_bytes(path, b"b", mode=0o644)
    assert (path.stat().st_mode & 0o777, path.read_bytes()) == (0o644, b"b")
