//! What the price models and the emitters know of a device.

use serde::{Deserialize, Serialize};

/// Constants of one device, in microseconds, bytes and operations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// The name that `--target` takes.
    pub name: String,
    /// What NVRTC is asked for, for example `sm_90a`.
    pub arch: String,
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Most dynamic shared memory of one block, bytes.
    pub shared_bytes_per_block: u32,
    /// Device memory bandwidth, bytes per microsecond (read + write).
    pub memory_bandwidth: f64,
    /// What one multiprocessor draws from L2, bytes per microsecond.
    pub l2_bandwidth_per_multiprocessor: f64,
    /// Dense f16 tensor-core rate of `mma.sync`, flop per microsecond.
    pub f16_rate: f64,
    /// Dense tf32 tensor-core rate of `mma.sync`, flop per microsecond.
    pub tf32_rate: f64,
    /// Plain f32 FMA rate, flop per microsecond.
    pub f32_rate: f64,
    /// Special-function rate (sine, exponential), operations per microsecond.
    pub special_rate: f64,
    /// A kernel boundary inside a graph: drain, ramp and cold first loads, microseconds.
    pub launch_us: f64,
    /// Whether the constants were measured on the device or estimated from its data sheet.
    pub measured: bool,
}

impl Device {
    /// The names that [`Device::named`] knows.
    pub const NAMES: [&'static str; 3] = ["h200", "a100", "b200"];

    /// NVIDIA H200: constants measured on 2026-12-01 (driver 580.159, CUDA 13.0), see `docs/measurements/`.
    pub fn h200() -> Device {
        Device {
            name: "h200".to_owned(),
            arch: "sm_90a".to_owned(),
            multiprocessors: 132,
            shared_bytes_per_block: 227 * 1024,
            memory_bandwidth: 4.28e6,
            l2_bandwidth_per_multiprocessor: 0.074e6,
            f16_rate: 400e6,
            tf32_rate: 200e6,
            f32_rate: 40e6,
            special_rate: 4e6,
            launch_us: 2.0,
            measured: true,
        }
    }

    /// NVIDIA A100 80 GB, estimated from its data sheet.
    pub fn a100() -> Device {
        Device {
            name: "a100".to_owned(),
            arch: "sm_80".to_owned(),
            multiprocessors: 108,
            shared_bytes_per_block: 163 * 1024,
            memory_bandwidth: 1.7e6,
            l2_bandwidth_per_multiprocessor: 0.04e6,
            f16_rate: 220e6,
            tf32_rate: 110e6,
            f32_rate: 14e6,
            special_rate: 2.4e6,
            launch_us: 2.5,
            measured: false,
        }
    }

    /// NVIDIA B200, estimated from its data sheet.
    pub fn b200() -> Device {
        Device {
            name: "b200".to_owned(),
            arch: "sm_100".to_owned(),
            multiprocessors: 148,
            shared_bytes_per_block: 227 * 1024,
            memory_bandwidth: 7.0e6,
            l2_bandwidth_per_multiprocessor: 0.08e6,
            f16_rate: 500e6,
            tf32_rate: 250e6,
            f32_rate: 50e6,
            special_rate: 4.5e6,
            launch_us: 2.0,
            measured: false,
        }
    }

    /// The device of this name, with estimated constants where no measurement exists.
    pub fn named(name: &str) -> Option<Device> {
        match name {
            "h200" => Some(Device::h200()),
            "a100" => Some(Device::a100()),
            "b200" => Some(Device::b200()),
            _ => None,
        }
    }

    /// Whether a launch may begin before those it depends on have ended (programmatic dependent launch).
    pub fn overlaps_launches(&self) -> bool {
        self.arch != "sm_80"
    }
}
