"""Run by the Python of release/llama_cpp.py: makes a tiny random model and serves it until it is terminated.

python llama_cpp_program.py MODEL PORT
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import gguf
import numpy
import xllamacpp

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 4, 128, 8192
# Control tokens, all bytes, and the letters: a prompt of letters has a token for each.
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *LETTERS, "\u2581"]
KINDS = [2, 3, 3, *(6 for _ in range(256)), *(1 for _ in LETTERS), 1]


def write_model(file: Path) -> None:
    """A model of llama's architecture with random weights."""
    made = gguf.GGUFWriter(file, "llama")
    made.add_context_length(CONTEXT)
    made.add_embedding_length(WIDTH)
    made.add_block_count(LAYERS)
    made.add_feed_forward_length(INNER)
    made.add_head_count(HEADS)
    made.add_head_count_kv(HEADS)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_dimension_count(WIDTH // HEADS)
    made.add_vocab_size(len(TOKENS))
    made.add_tokenizer_model("llama")
    made.add_token_list(TOKENS)
    made.add_token_scores([0.0] * len(TOKENS))
    made.add_token_types(KINDS)
    made.add_bos_token_id(1)
    made.add_eos_token_id(2)
    made.add_unk_token_id(0)
    random = numpy.random.default_rng(1)

    def weights(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) * 0.05 if len(shape) > 1 else numpy.ones(shape)
        made.add_tensor(f"{name}.weight", values.astype(numpy.float32))

    weights("token_embd", len(TOKENS), WIDTH)
    weights("output_norm", WIDTH)
    weights("output", len(TOKENS), WIDTH)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            weights(f"blk.{layer}.{name}", WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights(f"blk.{layer}.{name}", WIDTH, WIDTH)
        for name in ("ffn_gate", "ffn_up"):
            weights(f"blk.{layer}.{name}", INNER, WIDTH)
        weights(f"blk.{layer}.ffn_down", WIDTH, INNER)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()


def serve(file: Path, port: int) -> None:
    """Serve the model until the program is terminated."""
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.hostnames, settings.port = str(file), ["127.0.0.1"], port
    settings.endpoint_metrics = True
    # Two slots, each with a separate context.
    settings.n_parallel, settings.n_ctx = 2, 2 * CONTEXT
    settings.cpuparams.n_threads = 1
    server = xllamacpp.Server(settings)
    assert server.listening_address.endswith(f":{port}")
    signal.sigwait({signal.SIGTERM})


if __name__ == "__main__":
    # Before the server's threads start, so that none of them takes the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    model = Path(sys.argv[1])
    if not model.exists():
        write_model(model)
    serve(model, int(sys.argv[2]))
    # The server's threads do not end.
    os._exit(0)
