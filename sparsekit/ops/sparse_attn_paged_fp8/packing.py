"""Rows of 512 columns in 584 bytes: fp8 with a scale for each 64 columns, and bf16.

A page of P tokens, the form in which DeepSeek-V4 keeps them:

    0                      576 P                584 P
    | P x (448 B | 128 B)  | P x (7 B | 1 B)    | whatever comes before the next page
      |     |                |     |
      |     64 bf16          |     not read
      448 e4m3               7 scales, ue8m0

Column c < 448 of a token is bf16(e4m3[c] 2^(scale[c / 64] - 127)), rounded to nearest even; columns
from 448 on are the bf16 as they are. e4m3 0x7f and 0xff are NaN, and so is every product with a
scale of 255.
"""

from __future__ import annotations

import torch

COLUMNS = 512
FP8_COLUMNS, BLOCK = 448, 64
VALUE_BYTES = FP8_COLUMNS + 2 * (COLUMNS - FP8_COLUMNS)
SCALE_BYTES = 8
TOKEN_BYTES = VALUE_BYTES + SCALE_BYTES
_BLOCKS = FP8_COLUMNS // BLOCK
_BIAS, _NAN_SCALE = 127, 255
_LARGEST = 448.0  # of e4m3


def pack(rows: torch.Tensor, page_size: int) -> torch.Tensor:
    """Rows [pages * page_size, 512] bf16 to [pages, 584 * page_size] uint8.

    A block's scale is the least power of two with which its largest finite value fits e4m3; what is
    not finite becomes NaN.
    """
    pages = rows.shape[0] // page_size
    blocks = rows[:, :FP8_COLUMNS].float().view(-1, _BLOCKS, BLOCK)
    finite = torch.where(blocks.isfinite(), blocks, 0.0)
    top = finite.abs().amax(-1) / _LARGEST
    exponent = torch.where(top > 0, top, 1.0).log2().ceil().clamp(-_BIAS, _BIAS)
    scaled = finite.double() * torch.exp2(-exponent.double())[..., None]
    fp8 = scaled.float().clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    bits = torch.where(blocks.isfinite(), fp8.view(torch.uint8), 0x7F)
    rope = rows[:, FP8_COLUMNS:].contiguous().view(torch.uint8)
    values = torch.cat([bits.view(-1, FP8_COLUMNS), rope.view(-1, VALUE_BYTES - FP8_COLUMNS)], 1)
    scales = torch.zeros((rows.shape[0], SCALE_BYTES), dtype=torch.uint8)
    scales[:, :_BLOCKS] = (exponent + _BIAS).to(torch.uint8)
    of_page = (VALUE_BYTES * page_size, SCALE_BYTES * page_size)
    return torch.cat([x.view(pages, n) for x, n in zip((values, scales), of_page, strict=True)], 1)


def unpack(pool: torch.Tensor, page_size: int) -> torch.Tensor:
    """Pages [pages, at least 584 * page_size] uint8 to rows [pages * page_size, 512] bf16."""
    values = pool[:, : VALUE_BYTES * page_size].reshape(-1, VALUE_BYTES)
    scales = pool[:, VALUE_BYTES * page_size : TOKEN_BYTES * page_size]
    scales = scales.reshape(-1, SCALE_BYTES)[:, :_BLOCKS]
    fp8 = values[:, :FP8_COLUMNS].contiguous().view(torch.float8_e4m3fn).double()
    factor = torch.exp2(scales.double() - _BIAS)
    factor = torch.where(scales == _NAN_SCALE, torch.nan, factor)
    # Both the products in fp32 and their doubles are exact, so one rounding is made.
    exact = (fp8.view(-1, _BLOCKS, BLOCK) * factor[..., None]).float()
    rope = values[:, FP8_COLUMNS:].contiguous().view(torch.bfloat16)
    return torch.cat([exact.bfloat16().view(-1, FP8_COLUMNS), rope], 1)
