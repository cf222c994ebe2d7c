//! Files that commands write, whole or not at all.

use std::path::Path;

use hyenac::files::write_whole;
use serde::Serialize;

use super::failure::Failure;

/// Writes bytes.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    Ok(write_whole(path, |writer| writer.write_all(bytes)).map_err(hyenac::Error::from)?)
}

/// Writes a value as indented JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let mut bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| Failure::usage(path.display().to_string(), error.to_string()))?;
    bytes.push(b'\n');
    write_bytes(path, &bytes)
}

/// Makes a folder, and those above it.
pub fn make_folder(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|source| {
        let error = hyenac::files::FileError::Io { action: "create", path: path.to_owned(), source };
        Failure::Hyenac(error.into())
    })
}
