use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// A file of this header and this many bytes of data.
fn file(folder: &TempDir, header: &str, data: usize) -> PathBuf {
    let path = folder.path().join("tensors.safetensors");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(&path, bytes).unwrap();
    path
}

fn refusal(path: &Path) -> String {
    TensorFile::open(path).unwrap_err().to_string()
}

#[test]
fn what_is_written_is_read_back() {
    let folder = folder();
    let path = folder.path().join("y.safetensors");
    let (a, b) = ([1.5f32, -0.0, f32::MIN_POSITIVE, 4.0], [7.0f32]);
    let tensors = BTreeMap::from([
        ("b".to_owned(), TensorRef { shape: &[1], values: &b }),
        ("a".to_owned(), TensorRef { shape: &[2, 2], values: &a }),
    ]);
    let metadata = BTreeMap::from([("l_max".to_owned(), "64".to_owned()), ("eps".to_owned(), "1e-5".to_owned())]);
    write_tensors(&path, &tensors, &metadata).unwrap();

    let mut file = TensorFile::open(&path).unwrap();
    assert_eq!(file.metadata(), &metadata);
    assert_eq!(file.entries()["a"].shape, [2, 2]);
    assert_eq!(file.read_f32("a").unwrap().map_bits(), a.to_vec().map_bits());
    assert_eq!(file.read_f64("b").unwrap(), [7.0]);
    // The library others read the file with agrees.
    let bytes = fs::read(&path).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(read.tensor("b").unwrap().data(), 7f32.to_le_bytes());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file stays behind");
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}
impl Bits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|value| value.to_bits()).collect()
    }
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = folder();
    let path = folder.path().join("y.safetensors");
    fs::write(&path, "old").unwrap();
    let error = write_whole(&path, |writer| {
        writer.write_all(b"half")?;
        Err(std::io::Error::other("disk full"))
    })
    .unwrap_err();
    assert!(error.to_string().contains("disk full"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

    let tensors = BTreeMap::from([("a".to_owned(), TensorRef { shape: &[2, 3], values: &[1.0] })]);
    assert!(write_tensors(&path, &tensors, &BTreeMap::new()).is_err());
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn a_header_longer_than_the_file_is_refused() {
    let folder = folder();
    let path = folder.path().join("hostile");
    for claimed in [17u64, 1 << 40, u64::MAX, u64::MAX - 7] {
        let mut bytes = claimed.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        fs::write(&path, bytes).unwrap();
        assert!(refusal(&path).contains(&format!("claims a header of {claimed} bytes")), "{}", refusal(&path));
    }
}

#[test]
fn tensors_larger_than_the_file_are_refused() {
    let folder = folder();
    let entry =
        |shape: &str, end: u64| format!(r#"{{"w":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{end}]}}}}"#);
    // Truncated, far too large, overflowing, with bytes to spare, and of another size than its shape.
    for (shape, end, data) in [
        ("[4]", 16, 15),
        ("[1099511627776]", 4398046511104, 16),
        ("[9223372036854775807, 9223372036854775807]", 16, 16),
        ("[4]", 16, 17),
        ("[3]", 16, 16),
    ] {
        let path = file(&folder, &entry(shape, end), data);
        assert!(refusal(&path).contains("not a valid safetensors file"), "{shape}: {}", refusal(&path));
    }
    let path = file(&folder, &entry("[4]", 16), 16);
    assert_eq!(TensorFile::open(&path).unwrap().read_f32("w").unwrap(), [0.0; 4]);
}

#[test]
fn other_files_are_refused() {
    let folder = folder();
    let path = folder.path().join("x");
    for content in [&b""[..], b"short", b"\x02\0\0\0\0\0\0\0[]", b"\x02\0\0\0\0\0\0\0\xff\xfe"] {
        fs::write(&path, content).unwrap();
        assert!(refusal(&path).contains("not a valid safetensors file"), "{}", refusal(&path));
    }
    assert!(refusal(folder.path()).contains("not a regular file"));
    assert!(refusal(&folder.path().join("absent")).contains("cannot open"));
}

#[test]
fn a_wrong_dtype_says_what_was_found() {
    let folder = folder();
    let path = file(&folder, r#"{"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}"#, 4);
    let mut file = TensorFile::open(&path).unwrap();
    let error = file.read_f32("w").unwrap_err().to_string();
    assert!(error.contains("expected F32, found BF16[2]"), "{error}");
    assert!(file.read_f64("w").is_err());
    let error = file.read_f32("W").unwrap_err().to_string();
    assert!(error.contains("no tensor `W`"), "{error}");
}

#[test]
fn the_nearest_name_is_a_likely_misspelling_or_none() {
    let names = ["in_proj_wieght", "encoder.layers.0", "zz"];
    assert_eq!(nearest("in_proj_weight", names.into_iter()).as_deref(), Some("in_proj_wieght"));
    assert_eq!(nearest("sin_freq", names.into_iter()), None);
}

#[test]
fn a_sparse_file_larger_than_memory_is_refused() {
    let folder = folder();
    let bytes = 1u64 << 42;
    let header = format!(r#"{{"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{bytes}]}}}}"#, bytes / 4);
    let path = file(&folder, &header, 0);
    let length = fs::metadata(&path).unwrap().len();
    // Some file systems have no files of this size; there is nothing to refuse on them.
    if fs::File::options().write(true).open(&path).unwrap().set_len(length + bytes).is_ok() {
        let error = TensorFile::open(&path).unwrap().read_f32("w").unwrap_err().to_string();
        assert!(error.contains(&format!("needs {bytes} bytes")), "{error}");
    }
}
