//! Writing tensors to a safetensors file, whole or not at all.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::error::FileError;

/// A tensor of binary32 to be written.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Extents, outermost first.
    pub shape: &'a [usize],
    /// Elements, row-major.
    pub values: &'a [f32],
}

/// Writes F32 tensors and metadata. The file appears under its name only when it is complete; an older file
/// of that name stays as it was if anything fails.
///
/// # Errors
/// When a shape does not fit its values, or the folder cannot be written.
pub fn write_tensors(
    path: &Path,
    tensors: &BTreeMap<String, TensorRef<'_>>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), FileError> {
    // The header is built here and not by `safetensors::serialize`, which orders metadata at random.
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut offset = 0;
    for (name, tensor) in tensors {
        let elements = tensor.shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
        if elements != Some(tensor.values.len()) {
            let (shape, found) = (tensor.shape, tensor.values.len());
            let why = format!("tensor `{name}` of shape {shape:?} was given {found} values");
            return Err(FileError::Format { path: path.to_owned(), why });
        }
        let end = offset + size_of_val(tensor.values);
        let about = json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end] });
        header.insert(name.clone(), about);
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // Spaces align the data to 8 bytes, as the format recommends.
    header.resize(header.len().next_multiple_of(8), b' ');
    write_whole(path, |writer| {
        writer.write_all(&(header.len() as u64).to_le_bytes())?;
        writer.write_all(&header)?;
        for tensor in tensors.values() {
            if cfg!(target_endian = "little") {
                writer.write_all(bytemuck::cast_slice(tensor.values))?;
            } else {
                tensor.values.iter().try_for_each(|value| writer.write_all(&value.to_le_bytes()))?;
            }
        }
        Ok(())
    })
}

/// Writes a file under a temporary name in its own folder, then renames it.
///
/// # Errors
/// When the folder cannot be written or the name is taken by something that is no file.
pub fn write_whole(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), FileError> {
    let io = |action| move |source| FileError::Io { action, path: path.to_owned(), source };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".hyenac-");
    // Temporary files are private by default; a result gets the permissions of any file the user creates.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(folder).map_err(io("create"))?;
    let mut writer = BufWriter::new(file.as_file());
    content(&mut writer).and_then(|()| writer.flush()).map_err(io("write"))?;
    drop(writer);
    file.as_file().sync_all().map_err(io("write"))?;
    file.persist(path).map_err(|error| io("rename")(error.error))?;
    Ok(())
}
