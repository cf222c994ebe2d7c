use std::path::PathBuf;

use super::*;
use crate::files::{TensorRef, write_tensors};
use crate::inputs::{Distribution, generate};

/// Tensors and metadata of a file that a test spoils.
struct Draft {
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    metadata: BTreeMap<String, String>,
    folder: tempfile::TempDir,
}

fn small() -> BlockConfig {
    BlockConfig { d_model: 16, d_inner: 24, emb_dim: 3, filter_order: 8, short_filter: 4, ..BlockConfig::benchmark() }
}

impl Draft {
    fn new() -> Draft {
        let inputs = generate(Distribution::Trained, &small(), 2, 5, 0).unwrap();
        let mut tensors: BTreeMap<_, _> = small()
            .weights()
            .into_iter()
            .map(|(name, shape)| (name.to_owned(), (shape, inputs.block.weights()[name].clone())))
            .collect();
        tensors.insert(INPUT_NAME.to_owned(), (vec![2, 5, 16], inputs.hidden_states));
        Draft { tensors, metadata: BTreeMap::new(), folder: tempfile::tempdir().unwrap() }
    }

    fn write(&self) -> PathBuf {
        let path = self.folder.path().join("block.safetensors");
        let tensors =
            self.tensors.iter().map(|(name, (shape, values))| (name.clone(), TensorRef { shape, values })).collect();
        write_tensors(&path, &tensors, &self.metadata).unwrap();
        path
    }

    fn open(&self) -> Result<BlockFile, Error> {
        BlockFile::open(&self.write(), &Settings::of(BlockConfig::benchmark()))
    }

    fn refusal(&self) -> String {
        let error = self.open().unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.tensors.remove(from).unwrap();
        self.tensors.insert(to.to_owned(), tensor);
    }
}

#[test]
fn sizes_are_read_off_the_shapes() {
    let mut file = Draft::new().open().unwrap();
    assert_eq!(file.block.config(), &small());
    assert!(file.warnings.is_empty(), "{:?}", file.warnings);
    let x = file.hidden_states().unwrap().unwrap();
    assert_eq!((x.batch, x.seq_len, x.values.len()), (2, 5, 160));
    assert_eq!(file.expected_output("benchmark", 2, 5).unwrap(), None);
}

#[test]
fn metadata_is_read_and_flags_override_it() {
    let mut draft = Draft::new();
    for (key, value) in [("layer_norm_eps", "1e-3"), ("exp_mod_shift", "0"), ("l_max", "77"), ("order", "2")] {
        draft.metadata.insert(key.to_owned(), value.to_owned());
    }
    let config = *draft.open().unwrap().block.config();
    assert_eq!((config.layer_norm_eps, config.shift, config.l_max), (1e-3, 0.0, 77));
    let settings =
        Settings { preset: BlockConfig::hyenadna(), layer_norm_eps: Some(1e-6), shift: Some(0.5), l_max: Some(99) };
    let config = *BlockFile::open(&draft.write(), &settings).unwrap().block.config();
    assert_eq!((config.layer_norm_eps, config.shift, config.l_max), (1e-6, 0.5, 99));
    assert!(!config.filter_bias_in_filter);
}

#[test]
fn bad_metadata_names_key_and_value() {
    let bad = [("layer_norm_eps", "-1"), ("layer_norm_eps", "NaN"), ("exp_mod_shift", "inf"), ("l_max", "0")];
    for (key, value) in bad.into_iter().chain([("l_max", "1e3"), ("exp_mod_shift", "five"), ("order", "3")]) {
        let mut draft = Draft::new();
        draft.metadata.insert(key.to_owned(), value.to_owned());
        let error = draft.refusal();
        assert!(error.contains(&format!("`{key}` = `{value}`")), "{error}");
    }
}

#[test]
fn a_misspelt_weight_is_recognised() {
    let mut draft = Draft::new();
    draft.rename("filter_linear2_weight", "filter_linaer2_weight");
    let error = draft.refusal();
    assert!(error.contains("no tensor `filter_linear2_weight` (expected F32 [filter_order, filter_order])"), "{error}");
    assert!(error.contains("did you mean `filter_linaer2_weight`"), "{error}");

    let mut draft = Draft::new();
    draft.rename("sin_freq", "unrelated");
    let error = draft.refusal();
    assert!(error.contains("no tensor `sin_freq`") && !error.contains("did you mean"), "{error}");
}

#[test]
fn a_wrong_shape_says_what_was_expected() {
    for (name, shape, expected) in [
        ("mlp_fc2_weight", vec![24, 16], "expected shape [16, 24], which is [d_model, d_inner], found [24, 16]"),
        ("norm1_weight", vec![1, 16], "expected shape [d_model], found [1, 16]"),
        ("short_conv_weight", vec![48, 4], "expected shape [3 d_model, 1, taps], found [48, 4]"),
        ("hidden_states", vec![2, 80], "expected shape [batch, seq_len, 16], none of them 0, found [2, 80]"),
    ] {
        let mut draft = Draft::new();
        draft.tensors.get_mut(name).unwrap().0 = shape;
        let error = match draft.open() {
            Ok(mut file) => file.hidden_states().unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains(&format!("tensor `{name}`")), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn sizes_outside_the_limits_are_refused() {
    let mut draft = Draft::new();
    draft.tensors.insert("norm1_weight".to_owned(), (vec![12], vec![1.0; 12]));
    let error = draft.refusal();
    assert!(error.contains("d_model = 12"), "{error}");
}

#[test]
fn unknown_tensors_are_listed_in_one_warning() {
    let mut draft = Draft::new();
    for name in ["z.extra", "a.extra", "output.benchmark", "filter.hyenadna"] {
        draft.tensors.insert(name.to_owned(), (vec![1], vec![0.0]));
    }
    let file = draft.open().unwrap();
    assert_eq!(file.warnings.len(), 1);
    assert!(file.warnings[0].ends_with("ignored: a.extra, z.extra"), "{:?}", file.warnings);
}

#[test]
fn an_expected_output_must_have_the_shape_of_the_output() {
    let mut draft = Draft::new();
    draft.tensors.insert("output.benchmark".to_owned(), (vec![2, 5, 16], vec![2.5; 160]));
    let mut file = draft.open().unwrap();
    assert_eq!(file.expected_output("benchmark", 2, 5).unwrap().unwrap(), [2.5; 160]);
    assert!(file.expected_output("benchmark", 1, 10).is_err());
    assert_eq!(file.expected_output("hyenadna", 2, 5).unwrap(), None);
}

#[test]
fn weights_that_are_not_finite_are_named() {
    let mut draft = Draft::new();
    draft.tensors.get_mut("mlp_fc2_bias").unwrap().1[3] = f32::NAN;
    let found = draft.open().unwrap().block.not_finite();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].0.as_str(), found[0].1.index.as_slice()), ("mlp_fc2_bias", &[3][..]));
}

#[test]
fn a_file_without_an_input_says_so() {
    let mut draft = Draft::new();
    draft.rename(INPUT_NAME, "hidden_state");
    let path = draft.write();
    let mut file = draft.open().unwrap();
    assert_eq!(file.hidden_states().unwrap(), None);
    let error = read_hidden_states(&path, 16).unwrap_err().to_string();
    assert!(error.contains("did you mean `hidden_state`"), "{error}");
}
