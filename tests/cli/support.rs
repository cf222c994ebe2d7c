//! Running the binary, and making good and bad files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};

/// The binary, without the environment that would change what it does.
pub fn hyenac() -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hyenac"));
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("HYENAC_LOG").env_remove("RUST_BACKTRACE");
    // A cache of the tests' own: they neither fill the user's nor depend on it.
    command.env("HYENAC_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

/// A golden file.
pub fn golden(name: &str) -> String {
    format!("{}/tests/golden/{name}.safetensors", env!("CARGO_MANIFEST_DIR"))
}

/// What a command printed to stdout, which must be UTF-8.
pub fn stdout(command: &mut Command) -> String {
    String::from_utf8(command.assert().success().get_output().stdout.clone()).unwrap()
}

/// Runs a command that must fail with this exit code, and gives what it said on stderr.
///
/// Panics must never reach a user, whatever they type.
pub fn failure(command: &mut Command, code: i32) -> String {
    let assert = command.assert().code(code);
    let text = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// A tensor of a safetensors file.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: String,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn f32(shape: &[u64], values: &[f32]) -> Tensor {
        Tensor {
            dtype: "F32".to_owned(),
            shape: shape.to_vec(),
            bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }

    pub fn values(&self) -> Vec<f32> {
        self.bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }
}

/// A safetensors file taken apart, independently of the code under test.
#[derive(Clone)]
pub struct File {
    pub metadata: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

impl File {
    pub fn read(path: impl AsRef<Path>) -> File {
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let data = &bytes[8 + length..];
        let header = header.as_object().unwrap();
        let numbers = |value: &Value| value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>();
        let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, about)| {
            let offsets = numbers(&about["data_offsets"]);
            let tensor = Tensor {
                dtype: about["dtype"].as_str().unwrap().to_owned(),
                shape: numbers(&about["shape"]),
                bytes: data[offsets[0] as usize..offsets[1] as usize].to_vec(),
            };
            (name.clone(), tensor)
        });
        File { metadata: header.get("__metadata__").cloned().unwrap_or(json!({})), tensors: tensors.collect() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_owned(), self.metadata.clone());
        let mut data = Vec::new();
        for (name, tensor) in &self.tensors {
            let start = data.len();
            data.extend_from_slice(&tensor.bytes);
            let about = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()] });
            header.insert(name.clone(), about);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&data);
        bytes
    }
}

/// A folder for one test.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        std::fs::write(self.path(name), bytes).unwrap();
        self.text(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The tiny golden block, changed.
    pub fn changed(&self, change: impl FnOnce(&mut File)) -> String {
        let mut file = File::read(golden("tiny_b2_l21"));
        change(&mut file);
        self.write("changed.safetensors", &file.bytes())
    }
}
