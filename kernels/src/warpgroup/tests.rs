use hyenac_ir::{DType, Op, Region};

use crate::device::Device;
use crate::family::{Family, Lowered};
use crate::testing::{Body, block_head, block_tail};

use super::panel::Panel;
use super::tail::TailFamily;

fn lower_all(family: &dyn Family, region: &Region) -> Vec<Lowered> {
    let device = Device::h200();
    let candidates = family.candidates(region, &device).unwrap();
    candidates.iter().map(|candidate| family.lower(region, &candidate.schedule, &device).unwrap()).collect()
}

/// What is emitted for the region, without the skeleton that all kernels of the family share.
fn emitted(lowered: &Lowered) -> String {
    let source = &lowered.kernels[0].source.source;
    source[source.find("struct config").unwrap()..].to_owned()
}

fn snapshot(name: &str, text: &str) {
    insta::with_settings!({ snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/../snapshots/kernels"),
                            prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

#[test]
fn the_whole_tail_of_a_block_is_one_kernel() {
    let lowered = lower_all(&TailFamily, &block_tail(1, 131, 256, 1024));
    assert_eq!(
        lowered.iter().map(|lowered| lowered.kernels[0].grid[0]).collect::<Vec<_>>(),
        [18, 12, 10, 6, 6, 4, 4, 4, 36, 24, 20, 12, 12, 8, 8, 8]
    );
    snapshot("tail_block", &emitted(&lowered[2]));
}

#[test]
fn the_head_of_a_block_streams_its_weight_past_normalised_rows() {
    let lowered = lower_all(&Panel, &block_head(2, 1024, 256, 768));
    snapshot("panel_head", &emitted(&lowered[0]));
    // Rows of f16 are padded, and so are the rows that a kernel walks over.
    let odd = lower_all(&Panel, &block_head(2, 997, 256, 768));
    assert_eq!(odd[0].kernels[0].grid, lower_all(&Panel, &block_head(2, 1000, 256, 768))[0].kernels[0].grid);
    snapshot("panel_head_odd_length", &emitted(&odd[0]));
}

#[test]
fn other_devices_and_plain_weights_are_refused() {
    let region = block_tail(1, 64, 256, 1024);
    for device in [Device::a100(), Device::b200()] {
        assert!(TailFamily.candidates(&region, &device).unwrap_err().why.contains("sm_90a"));
    }
    let mut body = Body::default();
    let (x, w) = (body.parameter(DType::F16, &[64, 256]), body.parameter(DType::F16, &[64, 256]));
    let y = body.op(Op::Linear {}, &[x, w]);
    assert!(Panel.candidates(&body.region(y), &Device::h200()).unwrap_err().why.contains("panels"));
}

#[test]
#[ignore = "writes every emitted source to the folder named by HYENAC_DUMP, for a compiler run by hand"]
fn dump() {
    let Ok(folder) = std::env::var("HYENAC_DUMP") else { return };
    for (name, lowered) in [
        ("tail_131", lower_all(&TailFamily, &block_tail(1, 131, 256, 1024))),
        ("tail_256", lower_all(&TailFamily, &block_tail(1, 256, 256, 1024))),
        ("tail_1024", lower_all(&TailFamily, &block_tail(1, 1024, 256, 1024))),
        ("tail_2048", lower_all(&TailFamily, &block_tail(1, 2048, 256, 1024))),
        ("tail_4096", lower_all(&TailFamily, &block_tail(2, 2048, 256, 1024))),
        ("tail_4106", lower_all(&TailFamily, &block_tail(2, 2053, 256, 1024))),
        ("tail_7976", lower_all(&TailFamily, &block_tail(8, 997, 256, 1024))),
        ("tail_8192", lower_all(&TailFamily, &block_tail(2, 4096, 256, 1024))),
        ("panel_8192", lower_all(&Panel, &block_head(2, 4096, 256, 768))),
        ("panel_1994", lower_all(&Panel, &block_head(2, 997, 256, 768))),
        ("panel_256", lower_all(&Panel, &block_head(1, 256, 256, 768))),
    ] {
        for (index, lowered) in lowered.iter().enumerate() {
            let kernel = &lowered.kernels[0];
            std::fs::write(format!("{folder}/{name}_{index}.cu"), &kernel.source.source).unwrap();
            let launch = serde_json::json!({ "name": kernel.source.name, "grid": kernel.grid, "block": kernel.block, "shared": kernel.shared_bytes });
            std::fs::write(format!("{folder}/{name}_{index}.json"), launch.to_string()).unwrap();
        }
    }
}
