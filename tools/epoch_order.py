"""The order of rows in an epoch, as src/train/data/order.rs describes it, and array files of every layout for its tests.

    epoch_order.py ROWS SEED EPOCH      prints the order
    epoch_order.py --files DIR          writes stored.npz, deflated.npz, columns.npz and folder/
"""

import pathlib
import sys

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def key(seed, path):
    h = 0xCBF29CE484222325
    for b in path.encode():
        h = ((h ^ b) * 0x100000001B3) & M64
    z = h ^ (seed * 0x9E3779B97F4A7C15 & M64)
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & M64
    z ^= z >> 31
    return [z & M32, z >> 32]


def philox(k, c):
    k = list(k)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & M32, (a >> 32) ^ c[3] ^ k[1], a & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def order(rows, seed, epoch):
    k = key(seed, "rows")

    def words():
        counter = 0
        while True:
            w = philox(k, [counter & M32, counter >> 32, epoch & M32, epoch >> 32])
            yield w[1] << 32 | w[0]
            yield w[3] << 32 | w[2]
            counter += 1

    source = words()

    def below(n):
        while True:
            product = next(source) * n
            if product & M64 >= (1 << 64) % n:
                return product >> 64

    out = list(range(rows))
    for i in range(rows - 1, 0, -1):
        j = below(i + 1)
        out[i], out[j] = out[j], out[i]
    return out


def files(folder):
    import numpy as np

    folder = pathlib.Path(folder)
    (folder / "folder").mkdir(parents=True, exist_ok=True)
    x = np.arange(30, dtype=np.int16).reshape(5, 2, 3) - 7
    ids = np.array([0, 1, 2, 3, 65535], np.uint16)
    y0 = np.array([0, 2, 4, 6, 8], np.uint8)
    np.savez(folder / "stored.npz", x=x, ids=ids, y0=y0)
    np.savez_compressed(folder / "deflated.npz", x=x.astype(np.float64), ids=ids.astype(np.uint64), y0=y0)
    np.savez(folder / "columns.npz", x=np.asfortranarray(x.astype(">f4")), ids=ids.astype(">i8"), y0=y0)
    np.save(folder / "folder/x.npy", np.asfortranarray(x))
    np.save(folder / "folder/ids.npy", ids.astype(">u2"))
    np.save(folder / "folder/y0.npy", y0)


if __name__ == "__main__":
    if sys.argv[1] == "--files":
        files(sys.argv[2])
    else:
        print(order(*map(int, sys.argv[1:])))
