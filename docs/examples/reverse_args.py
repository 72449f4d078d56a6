"""sparsekit emulate reverse.ptx --args reverse_args.py"""

import numpy as np

BLOCK, BLOCKS = 128, 3
COUNT = BLOCKS * BLOCK - 5  # the last block's stretch ends early


def run(device):
    values = np.arange(1, COUNT + 1, dtype=np.float32)
    x = device.allocate(values, "in", read_only=True)
    y = device.allocate(4 * BLOCKS * BLOCK, "out")  # nobody has written it: reading it is a fault

    device.launch("reverse", grid=BLOCKS, block=BLOCK, args=[x, y, COUNT])

    padded = np.zeros(BLOCKS * BLOCK, np.float32)
    padded[:COUNT] = values
    found = device.read(y, np.float32)
    assert np.array_equal(found, padded.reshape(BLOCKS, BLOCK)[:, ::-1].reshape(-1)), "not reversed"
    return {"out": found}  # must be the same under every schedule
