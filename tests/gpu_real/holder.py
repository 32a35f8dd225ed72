"""Takes memory of a GPU through libcuda alone, says so, and waits to be killed: `holder.py DEVICE BYTES`.

With FAKE_NVML_DIR in the environment it plays this instead, so that `measure.py` can be tried without a GPU.
BYTES 0 initialises the driver and makes no context: such a process is listed nowhere.
"""

import ctypes
import json
import os
import sys
from pathlib import Path


def main() -> None:
    device, size = int(sys.argv[1]), int(sys.argv[2])
    folder = os.environ.get("FAKE_NVML_DIR")
    if folder is None:
        allocate(device, size)
    elif size:
        draft = Path(folder) / f"new-{os.getpid()}"
        draft.write_text(json.dumps({"device": device, "bytes": size}))
        draft.replace(Path(folder) / str(os.getpid()))
    print("up", flush=True)
    sys.stdin.read()


def allocate(device: int, size: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    handle, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call(cuda.cuInit(0), "cuInit")
    call(cuda.cuDeviceGet(ctypes.byref(handle), device), "cuDeviceGet")
    if not size:
        return
    call(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle), "cuDevicePrimaryCtxRetain")
    call(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    call(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(size)), "cuMemAlloc")
    call(cuda.cuMemsetD8_v2(memory, ctypes.c_ubyte(1), ctypes.c_size_t(size)), "cuMemsetD8")
    call(cuda.cuCtxSynchronize(), "cuCtxSynchronize")


def call(result: int, name: str) -> None:
    if result:
        raise SystemExit(f"{name} failed: CUDA error {result}")


if __name__ == "__main__":
    main()
