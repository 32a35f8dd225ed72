"""Progress bars, byte for byte like those of the recorded logs."""

from supervisor.simulator.bars import capture_bar, loading_bar, plain_bar


def texts(bar):
    return [step.text for step in bar]


def test_the_old_loading_bar_ends_every_redraw_with_a_line_feed():
    bar = texts(loading_bar("Loading safetensors checkpoint shards", 2, 8.0, newline=True))
    assert bar == [
        "\rLoading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]\n",
        "\rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:04<00:04,  4.00s/it]\n",
        "\rLoading safetensors checkpoint shards: 100% Completed | 2/2 [00:08<00:00,  4.00s/it]\n",
        "\n",
    ]


def test_the_new_loading_bar_has_none_before_the_end():
    bar = texts(loading_bar("Multi-thread loading shards", 8, 0.3, newline=False))
    assert bar[0] == "\rMulti-thread loading shards:   0% Completed | 0/8 [00:00<?, ?it/s]"
    assert bar[-1] == "\rMulti-thread loading shards: 100% Completed | 8/8 [00:00<00:00, 26.67it/s]\n"
    assert "\n" not in "".join(bar[:-1])


def test_a_capture_bar_goes_from_the_largest_size_down_like_the_recorded_one():
    bar = texts(capture_bar("Capturing batches", "bs", (1, 2, 4, 8, 12, 16, 24, 32), 11.85, 5.0))
    assert bar[0] == "\r  0%|          | 0/8 [00:00<?, ?it/s]"
    assert bar[1] == "\rCapturing batches (bs=32 avail_mem=11.85 GB):   0%|          | 0/8 [00:00<?, ?it/s]"
    assert bar[2].startswith("\rCapturing batches (bs=32 avail_mem=11.85 GB):  12%|█▎        | 1/8 [")
    assert bar[4].startswith("\rCapturing batches (bs=24 avail_mem=11.83 GB):  25%|██▌       | 2/8 [")
    assert bar[-2].startswith("\rCapturing batches (bs=1 avail_mem=11.71 GB): 100%|██████████| 8/8 [")
    assert bar[-1] == "\n"


def test_the_first_capture_takes_longest():
    moments = [step.at for step in capture_bar("Capturing batches", "bs", (1, 2, 4, 8), 10.0, 5.0)]
    assert moments == sorted(moments)
    assert moments[2] - moments[1] > 0.3
    assert moments[-1] == 1.0


def test_one_size_alone_fills_the_bar():
    assert [step.at for step in capture_bar("Capturing batches", "bs", (1,), 10.0, 5.0)] == [0.0, 0.0, 1.0, 1.0]


def test_long_times_show_hours():
    assert "1:00:00<1:00:00" in texts(plain_bar("DeepGEMM warmup", 2, 7200.0))[1]
