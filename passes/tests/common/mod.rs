//! A target for tests: a roofline that accepts maps, and one heavy op with maps around it.

use hyenac_ir::{Binding, DType, Graph, Op, Region, Value};
use hyenac_passes::{Basis, Offer, Refusal, Target};

/// Time of a launch, microseconds.
const LAUNCH_US: f64 = 2.0;
/// Bytes per microsecond.
const BANDWIDTH: f64 = 4e6;
/// Flop per microsecond, for operands of f16, of tf32 and of f32.
const RATES: [f64; 3] = [400e6, 200e6, 40e6];

/// The target, and what it refuses beyond its own limits.
#[derive(Default)]
pub struct Roofline {
    /// An op it has no kernel for at all.
    pub without: Option<&'static str>,
}

impl Target for Roofline {
    fn fingerprint(&self) -> String {
        "roofline".to_owned()
    }

    fn price(&self, region: &Region) -> Result<Offer, Refusal> {
        let body = region.body();
        body.verify_body().expect("only valid regions are priced");
        if let Some(op) = self.without
            && count(body, op) > 0
        {
            return Err(Refusal { op: op.to_owned(), why: "there is no kernel for it".to_owned(), larger: false });
        }
        accept(body)?;
        let bytes: usize = body.parameters().iter().map(|p| body.node(*p).types[0].bytes()).sum::<usize>()
            + body.outputs().iter().map(|output| body.ty(*output).bytes()).sum::<usize>();
        let arithmetic: f64 = body.nodes().map(|node| arithmetic_us(body, Value::of(node))).sum();
        let floor_us = (bytes as f64 / BANDWIDTH).max(arithmetic);
        let schedule = format!("{} ops", body.len());
        Ok(Offer {
            time_us: LAUNCH_US + floor_us,
            floor_us,
            launches: 1,
            scratch_bytes: 0,
            schedule,
            basis: Basis::Modelled,
        })
    }
}

fn count(body: &Graph, mnemonic: &str) -> usize {
    body.nodes().filter(|node| body.node(*node).op.mnemonic() == mnemonic).count()
}

fn accept(body: &Graph) -> Result<(), Refusal> {
    let weights_only = body.parameters().iter().all(|p| body.node(*p).binding == Binding::Weights);
    let heavy = ["linear", "long_conv", "irfft"].map(|op| count(body, op));
    let kinds = heavy.iter().filter(|count| **count > 0).count();
    let refuse = |op: &str, why: &str, larger| Err(Refusal { op: op.to_owned(), why: why.to_owned(), larger });
    if kinds > 1 || heavy[1] > 1 || heavy[2] > 1 || (heavy[0] > 0 && count(body, "rfft") > 0) {
        return refuse("region", "only one kind of heavy op in a kernel", false);
    }
    if heavy[0] > 1 && !weights_only {
        return refuse("linear", "two products of the input in one kernel", false);
    }
    if heavy[0] > 4 || count(body, "layer_norm") > 1 || count(body, "short_conv") > 1 {
        return refuse("region", "too many ops", false);
    }
    if heavy[1] > 0 && count(body, "layer_norm") + count(body, "short_conv") > 0 {
        return refuse("long_conv", "only maps around the convolution", false);
    }
    if heavy[2] == 0
        && body.outputs().iter().any(|output| body.ty(*output).dtype == DType::C64)
        && count(body, "spectrum_mul") > 0
    {
        return refuse("spectrum_mul", "a product of spectra is not stored", true);
    }
    Ok(())
}

fn arithmetic_us(body: &Graph, value: Value) -> f64 {
    let rate = |operand: usize| match body.ty(body.operand(value.node, operand)).dtype {
        DType::F16 => RATES[0],
        DType::Tf32 => RATES[1],
        _ => RATES[2],
    };
    let elements = body.ty(value).elements() as f64;
    match body.op(value) {
        Op::Linear {} => {
            let inner = body.ty(body.operand(value.node, 0)).shape.last().copied().unwrap_or(1);
            2.0 * elements * inner as f64 / rate(0)
        }
        Op::LongConv {} => {
            let length = body.ty(value).shape.last().copied().unwrap_or(1);
            elements * length as f64 / rate(0)
        }
        Op::Rfft { size } | Op::Irfft { size, .. } => {
            let length = body.ty(value).shape.last().copied().unwrap_or(1);
            let rows = elements / length as f64;
            2.5 * rows * *size as f64 * (*size as f64).log2() / RATES[2]
        }
        Op::Parameter { .. } => 0.0,
        _ => elements / RATES[2],
    }
}
