#!/usr/bin/env python3
"""Times what a PyTorch user has for a HyenaBlock, as `hyenac bench` times hyenac.

Each shape runs eagerly and through torch.compile, in fp32 and with tf32 allowed in products and
convolutions, always captured in one CUDA graph. The protocol is that of `hyenac bench`: for each
repetition the L2 is flushed, then an event, one graph launch, an event; the output is poisoned
before it is timed, and what was timed is compared with float64. The JSON has the format of
`hyenac bench --json`, one entry for each shape and variant, so that `hyenac bench --compare` reads it.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import sys
import time
import warnings

try:
    import torch
    import torch.nn.functional as F
except (ImportError, OSError) as error:
    torch, MISSING = None, str(error)

# Version of the JSON schema of `hyenac bench --json`.
SCHEMA = 1
# The sixteen shapes (batch, seq_len) of `hyenac bench --suite sol051`.
SOL051 = [
    (2, 128), (1, 131), (1, 256), (4, 256), (32, 256), (1, 512), (2, 512), (16, 512),
    (4, 541), (8, 997), (1, 1024), (1, 2048), (2, 2048), (2, 2053), (1, 4096), (2, 4096),
]
VARIANTS = ["eager-fp32", "eager-tf32", "compile-fp32", "compile-tf32"]
# Sizes of the block, those of `hyenac bench`.
D_MODEL, D_INNER, EMB_DIM, FILTER_ORDER, TAPS = 256, 1024, 5, 64, 3
EPS, SHIFT, L_MAX = 1e-5, 0.05, 32768
# Repetitions before those that count, as in `hyenac bench`.
WARMUP = 10
# Calls on the stream before a capture: lazy initialisation and FFT plans must not fall into it.
CAPTURE_WARMUP = 3

EXAMPLES = """\
examples:
  python3 bench/peers/torch_peers.py --json peers.json
  python3 bench/peers/torch_peers.py --variants compile-tf32 --json peers.json
  python3 bench/peers/torch_peers.py --cases 1x1024,2x4096 --variants eager-fp32,compile-fp32
  hyenac bench --json ours.json --compare peers.json      both in one go, on the same GPU
  hyenac bench --from ours.json --compare peers.json --plot bench.svg

exit codes: 0 success, 1 something could not be measured, 2 bad usage, 3 no PyTorch or no usable GPU"""


# ---- the block, `benchmark` preset ----


def positional_embedding(length, dtype, device):
    """[length, EMB_DIM] = [t, cos(f w) ..., -sin(f w) ...], and t [length]."""
    bands = (EMB_DIM - 1) // 2
    t = torch.linspace(0, 1, length, dtype=dtype, device=device)
    w = 2 * math.pi * torch.linspace(0, length - 1, length, dtype=dtype, device=device) / length
    f = torch.linspace(1e-4, bands - 1, bands, dtype=dtype, device=device)
    angle = w[:, None] * f[None, :]
    return torch.cat([t[:, None], torch.cos(angle), -torch.sin(angle)], dim=1), t


def hyena_filter(p, length):
    """The implicit filter [D, length]: the row-major [length, D] buffer read again as [D, length]."""
    z, t = positional_embedding(length, p["in_proj_weight"].dtype, p["in_proj_weight"].device)
    h = z
    for layer in ("1", "2", "3"):
        h = F.linear(h, p[f"filter_linear{layer}_weight"], p[f"filter_linear{layer}_bias"])
        h = torch.sin(p["sin_freq"] * h)
    h = F.linear(h, p["filter_linear_final_weight"])
    decay = torch.exp(-t[:, None] * p["exp_mod_deltas"].reshape(1, D_MODEL).abs())
    return (h * (decay + SHIFT) + p["filter_bias"]).reshape(D_MODEL, length)


def causal_fft_conv(u, k):
    """y[..., t] = sum over s <= t of k[s] u[..., t - s], for u [B, D, L] and k [D, L]."""
    length = u.shape[-1]
    n = 2 * length
    return torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., :length]


def hyena_block(x, p):
    """[B, L, D] -> [B, L, D]. Weights are inputs: everything is computed in every call."""
    length = x.shape[1]
    mixed = min(length, L_MAX)
    u = F.layer_norm(x, (D_MODEL,), p["norm1_weight"], p["norm1_bias"], EPS)
    u = F.linear(u, p["in_proj_weight"], p["in_proj_bias"]).transpose(1, 2)
    u = F.conv1d(F.pad(u, (TAPS - 1, 0)), p["short_conv_weight"], p["short_conv_bias"], groups=3 * D_MODEL)
    x0, x1, v = u[..., :mixed].split(D_MODEL, dim=1)
    v = v * x1
    v = causal_fft_conv(v, hyena_filter(p, mixed)) + v * p["filter_bias"][:, None]
    y = (v * x0).transpose(1, 2)
    if mixed < length:
        y = F.pad(y, (0, 0, 0, length - mixed))
    r = F.linear(y, p["out_proj_weight"], p["out_proj_bias"]) + x
    m = F.layer_norm(r, (D_MODEL,), p["norm2_weight"], p["norm2_bias"], EPS)
    m = F.gelu(F.linear(m, p["mlp_fc1_weight"], p["mlp_fc1_bias"]), approximate="tanh")
    return F.linear(m, p["mlp_fc2_weight"], p["mlp_fc2_bias"]) + r


def weight_shapes():
    """Shapes of the weights by name."""
    d, w, f = D_MODEL, 3 * D_MODEL, FILTER_ORDER
    return {
        "norm1_weight": (d,), "norm1_bias": (d,), "norm2_weight": (d,), "norm2_bias": (d,),
        "in_proj_weight": (w, d), "in_proj_bias": (w,),
        "short_conv_weight": (w, 1, TAPS), "short_conv_bias": (w,),
        "filter_linear1_weight": (f, EMB_DIM), "filter_linear1_bias": (f,), "sin_freq": (1, f),
        "filter_linear2_weight": (f, f), "filter_linear2_bias": (f,),
        "filter_linear3_weight": (f, f), "filter_linear3_bias": (f,),
        "filter_linear_final_weight": (d, f), "filter_bias": (d,), "exp_mod_deltas": (1, 1, d),
        "out_proj_weight": (d, d), "out_proj_bias": (d,),
        "mlp_fc1_weight": (D_INNER, d), "mlp_fc1_bias": (D_INNER,),
        "mlp_fc2_weight": (d, D_INNER), "mlp_fc2_bias": (d,),
    }


def generate(batch, length, inputs, seed):
    """Seeded input and weights on the CPU, with the distributions of `hyenac bench --inputs`."""
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def normal(shape, mean, scale):
        return mean + scale * torch.randn(shape, generator=generator, dtype=torch.float32)

    weights = {}
    for name, shape in weight_shapes().items():
        fan_in = 1 / math.sqrt(shape[-1])
        if name == "exp_mod_deltas":
            slow, fast = math.log(0.01) / 1.5, math.log(0.01) / 0.3
            weights[name] = torch.linspace(slow, fast, D_MODEL).reshape(shape)
            continue
        if inputs == "benchmark":
            identity = {"norm1_weight": 1, "norm2_weight": 1, "sin_freq": 1, "norm1_bias": 0, "norm2_bias": 0}
            mean, scale = (identity[name], 0.0) if name in identity else (0.0, 0.02)
        elif name in ("norm1_weight", "norm2_weight"):
            mean, scale = 1.0, 0.2
        elif name == "short_conv_weight":
            mean, scale = 0.0, 0.6
        elif name == "sin_freq":
            mean, scale = 10.0, 1.0
        elif name == "filter_linear_final_weight":
            mean, scale = 0.0, fan_in / math.sqrt(length / 16)
        elif name == "filter_bias":
            mean, scale = 0.0, 1 / math.sqrt(length)
        else:
            mean, scale = 0.0, fan_in if name.endswith("weight") else 0.1
        weights[name] = normal(shape, mean, scale)
    return normal((batch, length, D_MODEL), 0.0, 1.0), weights


# ---- the timing protocol ----


class Timer:
    """A stream, and a buffer to flush the L2 with."""

    def __init__(self):
        self.flushed_bytes = 2 * torch.cuda.get_device_properties(0).L2_cache_size
        self.flush = torch.empty(self.flushed_bytes, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()

    def measure(self, repetitions, replay, flush=True):
        """Microseconds of each `replay` between two events; the host waits only after the last."""
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repetitions)]
        with torch.cuda.stream(self.stream):
            for index, (start, end) in enumerate(events):
                # Without flushing, the first overwriting still gives the host its lead.
                if flush or index == 0:
                    self.flush.fill_(index % 256)
                start.record()
                replay()
                end.record()
        self.stream.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in events]

    def empty_graph_us(self, repetitions):
        """What the protocol itself costs: the median time of a graph with a kernel that does nothing."""
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                torch.cuda._sleep(0)
        except (AttributeError, RuntimeError) as error:
            note(f"note: the empty graph was not measured: {error}")
            return None
        self.measure(WARMUP, graph.replay)
        return statistics(self.measure(repetitions, graph.replay))["median_us"]


def statistics(times):
    """Median, minimum and 95th percentile, defined as in `hyenac bench`."""
    times = sorted(times)
    count = len(times)
    return {
        "median_us": (times[(count - 1) // 2] + times[count // 2]) / 2,
        "min_us": times[0],
        "p95_us": times[-(-count * 95 // 100) - 1],
    }


def allow_tf32(allowed):
    """Whether f32 products and convolutions may round their operands to tf32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def capture(block, x, weights, stream):
    """A graph of one call, and the tensor it writes its output to."""
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(CAPTURE_WARMUP):
            block(x, weights)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = block(x, weights)
    return graph, output


def errors(output, reference):
    """How far an output is from float64."""
    if reference is None:
        return {"max_abs_err": None, "rel_l2_err": None, "match_ratio": None}
    difference = (output.double() - reference).abs()
    found = {
        "max_abs_err": difference.max().item(),
        "rel_l2_err": (difference.norm() / reference.norm()).item(),
        "match_ratio": (difference <= 2.4e-4 + 1e-5 * reference.abs()).double().mean().item(),
    }
    # JSON has no NaN and no infinity; such an output is wrong all over.
    if not all(math.isfinite(value) for value in found.values()):
        raise RuntimeError("the output that was timed holds NaN or infinity")
    return found


def time_variant(variant, x, weights, reference, timer, repetitions):
    """Times and errors of one variant on one shape."""
    kind, precision = variant.split("-")
    allow_tf32(precision == "tf32")
    block = hyena_block
    if kind == "compile":
        # Nothing that an earlier shape or precision left may be used for this one.
        torch.compiler.reset()
        block = torch.compile(hyena_block, fullgraph=True, dynamic=False)
    graph, output = capture(block, x, weights, timer.stream)
    timer.measure(WARMUP, graph.replay)
    with torch.cuda.stream(timer.stream):
        output.fill_(math.nan)
    times = timer.measure(repetitions, graph.replay)
    found = errors(output, reference)

    def back_to_back():
        for _ in range(repetitions):
            graph.replay()

    hot_us = timer.measure(1, back_to_back)[0] / repetitions
    return {**statistics(times), "hot_us": hot_us, **found}


# ---- the report ----


def case_report(batch, seq_len, variant, measured, empty_graph_us):
    """One entry; what only hyenac knows is null."""
    return {
        "batch": batch, "seq_len": seq_len, "mode": variant, **measured,
        "empty_graph_us": empty_graph_us, "floor_us": None, "kernels": None, "conv": "fft",
    }


def report(software, device, protocol, inputs, cases):
    """The whole file."""
    modes = [variant for variant in VARIANTS if any(case["mode"] == variant for case in cases)]
    times = {mode: [case["median_us"] for case in cases if case["mode"] == mode] for mode in modes}
    return {
        "schema": SCHEMA,
        "software": software,
        "device": device,
        "target": device["sm"],
        "rules_hash": None,
        "protocol": protocol,
        "precision": ", ".join(sorted({mode.split("-")[1] for mode in modes})),
        "variant": "benchmark",
        "inputs": inputs,
        "cases": cases,
        "mean_us": {mode: sum(of_mode) / len(of_mode) for mode, of_mode in times.items()},
    }


def table(cases, variants):
    """Medians, a row for each shape."""
    rows = [["B x L", *variants]]
    shapes = list(dict.fromkeys((case["batch"], case["seq_len"]) for case in cases))
    medians = {(case["batch"], case["seq_len"], case["mode"]): case["median_us"] for case in cases}
    for batch, seq_len in shapes:
        found = [medians.get((batch, seq_len, variant)) for variant in variants]
        rows.append([f"{batch}x{seq_len}", *("-" if time is None else f"{time:.1f}" for time in found)])
    return "\n".join("  ".join([row[0].ljust(10), *(cell.rjust(12) for cell in row[1:])]) for row in rows)


def driver_version():
    """CUDA version of the driver, for example `13.0`; None when the driver does not say."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def write_whole(path, value):
    """Writes JSON, whole or not at all."""
    part = f"{path}.part"
    with open(part, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")
    os.replace(part, path)


# ---- the command line ----


def note(text):
    print(text, file=sys.stderr, flush=True)


def cases_of(text):
    if text == "sol051":
        return SOL051
    try:
        cases = [tuple(int(number) for number in case.strip().split("x")) for case in text.split(",")]
    except ValueError:
        cases = [()]
    if any(len(case) != 2 or min(case) < 1 for case in cases):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected sol051, or a list of batch x length such as 1x1024,2x4096 (both at least 1)")
    return list(dict.fromkeys(cases))


def variants_of(text):
    variants = VARIANTS if text == "all" else [variant.strip() for variant in text.split(",")]
    unknown = [variant for variant in variants if variant not in VARIANTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; expected all, or a list of {', '.join(VARIANTS)}")
    return list(dict.fromkeys(variants))


def repetitions_of(text):
    if not text.isdecimal() or not 50 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 50 to 100000")
    return int(text)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", metavar="LIST", type=cases_of, default=SOL051,
                        help="sol051 (16 shapes), or a list BxL,BxL (default: sol051)")
    parser.add_argument("--variants", metavar="LIST", type=variants_of, default=VARIANTS,
                        help=f"all, or a list of {', '.join(VARIANTS)} (default: all)")
    parser.add_argument("--inputs", choices=["trained", "benchmark"], default="trained",
                        help="distribution of the weights, as in hyenac bench (default: trained)")
    parser.add_argument("--repetitions", metavar="N", type=repetitions_of, default=50,
                        help="repetitions that the median is taken over, at least 50 (default: 50)")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of weights and inputs (default: 0)")
    parser.add_argument("--no-check", action="store_true", help="leave out the comparison with float64")
    parser.add_argument("--json", metavar="FILE", help="file to write the measurements to")
    return parser.parse_args()


def measure_all(options, timer):
    """Entries of everything that could be measured, and whether that was all."""
    empty_graph_us = timer.empty_graph_us(options.repetitions)
    cases, complete, begin = [], True, time.monotonic()
    for position, (batch, seq_len) in enumerate(options.cases, start=1):
        name = f"{batch}x{seq_len}"
        for variant in options.variants:
            x = weights = reference = None
            try:
                x, weights = generate(batch, seq_len, options.inputs, options.seed)
                x, weights = x.cuda(), {key: weight.cuda() for key, weight in weights.items()}
                if not options.no_check:
                    reference = hyena_block(x.double(), {key: weight.double() for key, weight in weights.items()})
                measured = time_variant(variant, x, weights, reference, timer, options.repetitions)
            # Compilers and drivers raise whatever they like; what else can be measured is worth having.
            except Exception as error:
                complete = False
                note(f"error: {name} {variant}: {type(error).__name__}: {error}")
                continue
            finally:
                # Graphs and their pools go before the next shape asks for memory.
                del x, weights, reference
                gc.collect()
                torch.cuda.empty_cache()
            cases.append(case_report(batch, seq_len, variant, measured, empty_graph_us))
            error = measured["rel_l2_err"]
            note(f"{position:2} of {len(options.cases)}  {name:10} {variant:12} {measured['median_us']:10.1f} us"
                 + ("" if error is None else f"  rel L2 {error:.1e}") + f"  after {time.monotonic() - begin:.0f} s")
    return cases, complete


def main():
    options = arguments()
    # Better now than after minutes of measuring.
    if options.json and not os.path.isdir(os.path.dirname(os.path.abspath(options.json))):
        note(f"error: cannot write {options.json}: its folder does not exist")
        return 2
    if torch is None:
        note(f"error: PyTorch cannot be imported: {MISSING}\nInstall it in this Python ({sys.executable}): pip install torch")
        return 3
    if not torch.cuda.is_available():
        why = "this build of PyTorch has no CUDA" if torch.version.cuda is None else "there is no GPU, or no driver for it"
        note(f"error: PyTorch {torch.__version__} finds no usable GPU: {why}")
        return 3
    # Known and wanted: inductor hands complex numbers to eager kernels, and tf32 is chosen here, variant by variant.
    warnings.filterwarnings("ignore", message=r"(?si).*(complex operators|tensorfloat32|tf32)")
    torch.set_grad_enabled(False)
    timer = Timer()
    major, minor = torch.cuda.get_device_capability(0)
    device = {
        "name": torch.cuda.get_device_name(0), "sm": f"sm_{major}{minor}", "driver": driver_version(), "nvrtc": None,
    }
    software = f"PyTorch {torch.__version__}"
    note(f"{software} on {device['name']}: {len(options.cases)} shapes, {', '.join(options.variants)}")
    cases, complete = measure_all(options, timer)
    protocol = {
        "clock": "cuda_events", "repetitions": options.repetitions, "warmup": WARMUP,
        "flushed_bytes": timer.flushed_bytes,
    }
    if not cases:
        note("error: nothing was measured")
        return 1
    print(f"{software} on {device['name']}; microseconds, median of {options.repetitions}\n{table(cases, options.variants)}")
    if options.json:
        try:
            write_whole(options.json, report(software, device, protocol, options.inputs, cases))
        except OSError as error:
            note(f"error: cannot write {options.json}: {error}")
            return 2
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
