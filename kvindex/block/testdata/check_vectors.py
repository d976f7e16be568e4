#!/usr/bin/env python3
"""Derives every value of vectors.json from its inputs, with the blake3 package.

It follows the section "Bytes" of the Go package's comment and shares no code
with it. XXH3 vectors are checked when the xxhash package is there; the runner
installs both, and --need-xxhash makes a missing one a failure.
"""

import base64
import json
import pathlib
import struct
import sys

import blake3

try:
    import xxhash
except ImportError:
    xxhash = None

FIELDS = [("model", 1), ("revision", 2), ("adapter", 3), ("tenant", 4), ("group", 5)]
SCHEME = b"stator-blake3-1"
DYNAMO = "dynamo-xxh3-1337"


def field(tag, content):
    return bytes([tag]) + struct.pack("<I", len(content)) + content if content else b""


def root(scope, unit=b""):
    record = field(0, SCHEME)
    for name, tag in FIELDS:
        record += field(tag, scope.get(name, "").encode())
    return blake3.blake3(record + field(6, unit)).digest()


def keyed(key, message):
    return blake3.blake3(message, key=key).digest()


def media_record(media, lo, hi):
    items = sorted(
        {(m["offset"], m["id"].encode()) for m in media if m["length"] > 0 and m["offset"] < hi and m["offset"] + m["length"] > lo}
    )
    if not items:
        return b""
    out = b"\x4d" + struct.pack("<I", len(items))
    for offset, name in items:
        out += struct.pack("<I", len(name)) + name + bytes(-len(name) % 4) + struct.pack("<q", offset - lo)
    return out


def hash_key(root_key, parent):
    head = struct.unpack("<Q", root_key[:8])[0] ^ parent
    return struct.pack("<Q", head) + root_key[8:]


def messages(v):
    n = v["block_tokens"]
    if "bytes_base64" in v:
        raw, unit = base64.b64decode(v["bytes_base64"]), 4 * n
        return [raw[i : i + unit] for i in range(0, len(raw) - unit + 1, unit)], unit
    if "token_rule" in v:
        r = v["token_rule"]
        tokens = [(i * r["step"] + r["first"]) % 2**32 for i in range(r["count"])]
    else:
        tokens = v.get("tokens", [])
    return [struct.pack(f"<{n}I", *tokens[i : i + n]) for i in range(0, len(tokens) - n + 1, n)], n


def derive(v):
    blocks, unit = messages(v)
    media, is_bytes = v.get("media", []), "bytes_base64" in v
    parent = int(v["parent"], 16) if "parent" in v else None
    hashes, keys = [], []
    key = root(v["scope"])
    hash_root = root(v["scope"], b"bytes") if is_bytes else key
    for i, message in enumerate(blocks):
        record = media_record(media, i * unit, (i + 1) * unit)
        if v["scheme"] == DYNAMO:
            full = message + (b"\x62" if is_bytes else b"") + record
            local = xxhash.xxh3_64_intdigest(full, seed=1337)
            if parent is None:
                parent = local
            else:
                parent = xxhash.xxh3_64_intdigest(struct.pack("<QQ", parent, local), seed=1337)
        else:
            k = hash_key(hash_root, parent or 0)
            if record:
                k = keyed(k, record)
            parent = struct.unpack("<Q", keyed(k, message)[:8])[0]
        hashes.append(f"{parent:016x}")
        if record:
            key = keyed(key, record)
        key = keyed(key, message)
        keys.append(key.hex())
    if is_bytes or "parent" in v:
        keys = None
    return root(v["scope"]).hex(), hashes, keys


def main():
    if xxhash is None and "--need-xxhash" in sys.argv:
        sys.exit("check_vectors: the xxhash package is missing")
    vectors = json.loads((pathlib.Path(__file__).parent / "vectors.json").read_text())
    checked = blocks = left = 0
    for v in vectors:
        if v["scheme"] == DYNAMO and xxhash is None:
            left += 1
            continue
        want = (v["root"], v["hashes"], v.get("keys") if v.get("keys") else None)
        got = derive(v)
        got = (got[0], got[1], got[2] if got[2] else None)
        if got != want:
            sys.exit(f"check_vectors: {v['name']}: want {want}, got {got}")
        checked += 1
        blocks += len(v["hashes"])
    print(f"check_vectors: {checked} vectors, {blocks} blocks agree" + (f"; {left} left out" if left else ""))
    if checked == 0 or blocks == 0:
        sys.exit("check_vectors: nothing was checked")


main()
