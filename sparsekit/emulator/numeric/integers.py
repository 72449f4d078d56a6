"""Integer arithmetic that numpy has no operator for. Source: PTX ISA, Integer Arithmetic."""

from __future__ import annotations

import numpy as np

from sparsekit.emulator.arrays import Array

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFF_FFFF)


def shift_left(a: Array, count: Array) -> Array:
    """a << count (u4); 0 from the width on."""
    bits = 8 * a.dtype.itemsize
    moved = a << np.minimum(count, np.uint32(bits - 1)).astype(a.dtype)
    over = count >= bits
    result: Array = np.where(over, a.dtype.type(0), moved) if np.count_nonzero(over) else moved
    return result


def shift_right(a: Array, count: Array) -> Array:
    """a >> count (u4), arithmetic for a signed type; from the width on all sign bits."""
    bits = 8 * a.dtype.itemsize
    moved: Array = a >> np.minimum(count, np.uint32(bits - 1)).astype(a.dtype)
    if a.dtype.kind == "i":
        return moved
    over = count >= bits
    return np.where(over, a.dtype.type(0), moved) if np.count_nonzero(over) else moved


def mul_hi(a: Array, b: Array) -> Array:
    """The upper half of the product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = f"{a.dtype.kind}{2 * a.dtype.itemsize}"
        product: Array = (a.astype(wide) * b.astype(wide)) >> bits
        return product.astype(a.dtype)
    x, y = a.view("u8"), b.view("u8")
    x0, x1, y0, y1 = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    middle = ((x0 * y0) >> _HALF) + (x1 * y0 & _LOW) + (x0 * y1 & _LOW)
    high: Array = x1 * y1 + ((x1 * y0) >> _HALF) + ((x0 * y1) >> _HALF) + (middle >> _HALF)
    if a.dtype.kind == "i":
        high -= np.where(a < 0, y, np.uint64(0)) + np.where(b < 0, x, np.uint64(0))
    return high.view(a.dtype)


def mul_wide(a: Array, b: Array) -> Array:
    """The whole product, of twice the width."""
    wide = f"{a.dtype.kind}{2 * a.dtype.itemsize}"
    result: Array = a.astype(wide) * b.astype(wide)
    return result


def mul24(a: Array, b: Array, *, high: bool) -> Array:
    """Bits 47 to 16, or 31 to 0, of the product of the operands' low 24 bits."""
    wide = f"{a.dtype.kind}8"
    drop = np.uint32(8)
    x = ((a.view("u4") << drop).view(a.dtype) >> a.dtype.type(8)).astype(wide)
    y = ((b.view("u4") << drop).view(b.dtype) >> b.dtype.type(8)).astype(wide)
    product = x * y
    result: Array = ((product >> product.dtype.type(16)) if high else product).astype(a.dtype)
    return result


def saturated(wide: Array, dtype: str) -> Array:
    """A wider integer clamped to the range of a type."""
    limits = np.iinfo(dtype)
    return np.clip(wide, limits.min, limits.max).astype(dtype)


def divide(a: Array, b: Array) -> Array:
    """The quotient, cut towards zero; all ones for a division by zero."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        inexact = (quotient * safe != a) & ((a < 0) != (safe < 0))
        quotient = quotient + inexact.astype(a.dtype)
    return np.where(zero, a.dtype.type(-1) if a.dtype.kind == "i" else ~a.dtype.type(0), quotient)


def remainder(a: Array, b: Array) -> Array:
    """a - b (a / b), with the sign of a; a for a division by zero."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    return np.where(zero, a, np.fmod(a, safe))


def absolute_difference(a: Array, b: Array) -> Array:
    """|a - b| without overflow, as bits."""
    return np.where(a > b, a - b, b - a)


def population(a: Array) -> Array:
    """The number of one bits, u4."""
    octets = np.ascontiguousarray(a).view(np.uint8).reshape(a.size, -1)
    count: Array = np.unpackbits(octets, axis=1).sum(axis=1, dtype=np.uint32)
    return count


def leading_zeros(a: Array) -> Array:
    """u4; the width for 0."""
    bits = 8 * a.dtype.itemsize
    if bits == 64:
        upper = (a >> _HALF).astype("u4")
        lower = (a & _LOW).astype("u4")
        return np.where(upper != 0, leading_zeros(upper), np.uint32(32) + leading_zeros(lower))
    _, exponent = np.frexp(a.astype("f8"))
    return np.where(a == 0, bits, bits - exponent).astype("u4")


def find_leading(a: Array, *, shift_amount: bool) -> Array:
    """The position of the most significant one, of a signed type of the first non-sign bit (bfind).

    u4; all ones where there is none. shift_amount: how far left it would have to move instead.
    """
    bits = 8 * a.dtype.itemsize
    unsigned = f"u{a.dtype.itemsize}"
    value = np.where(a < 0, ~a, a).view(unsigned) if a.dtype.kind == "i" else a
    zeros = leading_zeros(value)
    position = zeros if shift_amount else np.uint32(bits - 1) - zeros
    return np.where(value == 0, np.uint32(0xFFFF_FFFF), position)


def find_nth(mask: Array, base: Array, offset: Array) -> Array:
    """fns: the n-th set bit of mask from base on, n by offset; all ones where there is none."""
    result = np.full(mask.shape, 0xFFFF_FFFF, "u4")
    for lane, (m, b, n) in enumerate(
        zip(mask.tolist(), base.tolist(), offset.astype("i4").tolist(), strict=True)
    ):
        if n == 0:
            if b < 32 and m >> b & 1:
                result[lane] = b
            continue
        step, left, position = (1, n - 1, b) if n > 0 else (-1, -n - 1, b)
        while 0 <= position < 32:
            if m >> position & 1:
                if left == 0:
                    result[lane] = position
                    break
                left -= 1
            position += step
    return result


def reverse(a: Array) -> Array:
    """The bits in opposite order."""
    bits = 8 * a.dtype.itemsize
    kind = a.dtype.type
    step = 1
    while step < bits:
        mask = kind(sum(((1 << step) - 1) << s for s in range(0, bits, 2 * step)))
        a = ((a >> kind(step)) & mask) | ((a & mask) << kind(step))
        step *= 2
    return a


def extract(a: Array, position: Array, length: Array) -> Array:
    """bfe: the field at bits position ... +length-1, extended by its sign for a signed type."""
    width = 8 * a.dtype.itemsize
    pos = (position & np.uint32(0xFF)).astype("i8")
    size = (length & np.uint32(0xFF)).astype("i8")
    unsigned = a.view(f"u{a.dtype.itemsize}").astype("u8")
    available = np.clip(width - pos, 0, size)
    field = unsigned >> np.minimum(pos, 63).astype("u8")
    ones = _ones(available)
    field = np.where(pos >= width, np.uint64(0), field) & ones
    if a.dtype.kind == "i":
        sign_at = np.minimum(pos + size - 1, width - 1)
        negative = (size > 0) & ((unsigned >> np.maximum(sign_at, 0).astype("u8")) & 1 == 1)
        field = np.where(negative, field | ~ones, field)
    result: Array = field.astype(f"u{a.dtype.itemsize}").view(a.dtype)
    return result


def insert(a: Array, b: Array, position: Array, length: Array) -> Array:
    """bfi: b with the low bits of a in its field at position ... +length-1."""
    width = 8 * a.dtype.itemsize
    pos = (position & np.uint32(0xFF)).astype("i8")
    size = (length & np.uint32(0xFF)).astype("i8")
    shift = np.minimum(pos, 63).astype("u8")
    mask = np.where(pos >= width, np.uint64(0), _ones(np.clip(size, 0, width)) << shift)
    merged = (b.astype("u8") & ~mask) | ((a.astype("u8") << shift) & mask)
    result: Array = merged.astype(a.dtype)
    return result


def bit_mask(position: Array, length: Array, *, wrap: bool) -> Array:
    """bmsk: ones at bits position ... +length-1 of 32."""
    if wrap:
        position, length = position & np.uint32(31), length & np.uint32(31)
    pos, size = np.minimum(position, 32).astype("u8"), np.minimum(length, 32).astype("i8")
    result: Array = ((_ones(size) << pos) & _LOW).astype("u4")
    return result


def sign_extend(a: Array, length: Array, *, wrap: bool) -> Array:
    """szext: the low length bits of a, extended by their sign for a signed type."""
    size = length & np.uint32(31) if wrap else np.minimum(length, np.uint32(32))
    return extract(a, np.zeros_like(size), size)


def _ones(count: Array) -> Array:
    """count (0 ... 64) low ones, u8."""
    full = count >= 64
    partial = (np.uint64(1) << np.where(full, 0, count).astype("u8")) - np.uint64(1)
    return np.where(full, ~np.uint64(0), partial)


def permute(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """prmt: four bytes picked from the eight of a and b. mode: "" or f4e, b4e, rc8, ecl, ..."""
    lanes = np.arange(a.size)
    octets = np.empty((a.size, 8), np.uint8)
    octets[:, :4] = np.ascontiguousarray(a).view(np.uint8).reshape(-1, 4)
    octets[:, 4:] = np.ascontiguousarray(b).view(np.uint8).reshape(-1, 4)
    result = np.empty((a.size, 4), np.uint8)
    if not mode:
        for byte in range(4):
            nibble = (selector >> np.uint32(4 * byte)) & np.uint32(15)
            picked = octets[lanes, nibble & np.uint32(7)]
            signs = np.where(picked & 0x80, np.uint8(0xFF), np.uint8(0))
            result[:, byte] = np.where(nibble & np.uint32(8), signs, picked)
    else:
        order = np.array(_PERMUTE_MODES[mode])[selector & np.uint32(3)]
        for byte in range(4):
            result[:, byte] = octets[lanes, order[:, byte]]
    return result.view("u4").reshape(-1)


_PERMUTE_MODES = {
    # per low two bits of the selector: the source bytes of bytes 0, 1, 2, 3
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def logic3(a: Array, b: Array, c: Array, table: int) -> Array:
    """lop3: any logic function of three operands, by its truth table."""
    result = np.zeros_like(a)
    for row in range(8):
        if table >> row & 1:
            term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
            result |= term
    return result


def funnel(low: Array, high: Array, count: Array, *, left: bool, wrap: bool) -> Array:
    """shf: 32 bits of high:low, shifted."""
    n = (count & np.uint32(31)) if wrap else np.minimum(count, np.uint32(32))
    both: Array = (high.astype("u8") << _HALF) | low
    moved: Array = (both << n.astype("u8")) >> _HALF if left else both >> n.astype("u8")
    return moved.astype("u4")


def dot(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool) -> Array:
    """dp4a: c plus the products of four bytes each; c has the type of the result."""
    total = c.astype("i8")
    x = np.ascontiguousarray(a).view("i1" if a_signed else "u1").reshape(-1, 4).astype("i8")
    y = np.ascontiguousarray(b).view("i1" if b_signed else "u1").reshape(-1, 4).astype("i8")
    result: Array = (total + (x * y).sum(axis=1)).astype("u4").view(c.dtype)
    return result


def dot2(a: Array, b: Array, c: Array, a_signed: bool, b_signed: bool, *, high: bool) -> Array:
    """dp2a: c plus the products of two halves of a with the low or high two bytes of b."""
    total = c.astype("i8")
    x = np.ascontiguousarray(a).view("i2" if a_signed else "u2").reshape(-1, 2).astype("i8")
    y = np.ascontiguousarray(b).view("i1" if b_signed else "u1").reshape(-1, 4).astype("i8")
    y = y[:, 2:] if high else y[:, :2]
    result: Array = (total + (x * y).sum(axis=1)).astype("u4").view(c.dtype)
    return result
