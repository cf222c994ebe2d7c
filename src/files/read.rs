//! Reading tensors out of a safetensors file.
//!
//! The header is checked against the length of the file before anything of a claimed size is
//! allocated: after [`TensorFile::open`] every tensor lies inside the file, so that no tensor is larger
//! than the bytes that are really there. Tensors are then read one at a time.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::error::FileError;
use crate::runtime::cpu::available_bytes;

/// Bytes of the length field in front of the header.
const LENGTH_BYTES: u64 = 8;
/// The longest header that is read; a block's header has about 3 kB.
const MAX_HEADER_BYTES: u64 = 16 << 20;

/// Where a tensor lies in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Element type as the file states it.
    pub dtype: Dtype,
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    start: u64,
    bytes: u64,
}

/// An opened safetensors file with a verified header.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Opens a file and verifies its header.
    ///
    /// # Errors
    /// When it cannot be read, or is not a complete safetensors file.
    pub fn open(path: &Path) -> Result<TensorFile, FileError> {
        let io = |action| move |source| FileError::Io { action, path: path.to_owned(), source };
        let format = |why: String| FileError::Format { path: path.to_owned(), why };
        // Asked before opening: opening a pipe would wait for its writer.
        let about = std::fs::metadata(path).map_err(io("open"))?;
        if !about.is_file() {
            return Err(format("it is not a regular file".to_owned()));
        }
        let mut file = File::open(path).map_err(io("open"))?;
        let length = file.metadata().map_err(io("open"))?.len();
        if length < LENGTH_BYTES {
            return Err(format(format!("it has {length} bytes, the header's length alone takes {LENGTH_BYTES}")));
        }
        let mut field = [0u8; LENGTH_BYTES as usize];
        file.read_exact(&mut field).map_err(io("read"))?;
        let header_bytes = u64::from_le_bytes(field);
        if header_bytes > length - LENGTH_BYTES {
            return Err(format(format!("it claims a header of {header_bytes} bytes, but has {length} bytes in all")));
        }
        if header_bytes > MAX_HEADER_BYTES {
            return Err(format(format!("its header of {header_bytes} bytes exceeds the limit of {MAX_HEADER_BYTES}")));
        }
        let mut header = vec![0u8; header_bytes as usize];
        file.read_exact(&mut header).map_err(io("read"))?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|error| format(format!("header: {error}")))?;

        let data = LENGTH_BYTES + header_bytes;
        let claimed = header.data_len() as u64;
        if claimed != length - data {
            return Err(format(format!(
                "its header describes {claimed} bytes of tensors, but {} follow it",
                length - data
            )));
        }
        let mut entries = BTreeMap::new();
        for (name, info) in header.tensors() {
            // `Metadata` has checked that offsets ascend without gaps and fit the shapes.
            let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
            let bytes = end.checked_sub(start).filter(|_| end <= claimed);
            let bytes = bytes.ok_or_else(|| format(format!("tensor `{name}` lies outside the file")))?;
            entries.insert(name, Entry { dtype: info.dtype, shape: info.shape.clone(), start: data + start, bytes });
        }
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(TensorFile { path: path.to_owned(), file, entries, metadata })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// The free-form metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Reads an F32 tensor.
    ///
    /// # Errors
    /// When it is missing, has another dtype, or cannot be read.
    pub fn read_f32(&mut self, name: &str) -> Result<Vec<f32>, FileError> {
        let entry = self.entry(name)?;
        if entry.dtype != Dtype::F32 {
            return Err(self.wrong_dtype(name, &entry, "F32"));
        }
        self.require_memory(name, entry.bytes)?;
        let mut values = vec![0f32; (entry.bytes / 4) as usize];
        self.read_into(&entry, bytemuck::cast_slice_mut(&mut values))?;
        if cfg!(target_endian = "big") {
            values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits().swap_bytes()));
        }
        Ok(values)
    }

    /// Reads an F64 tensor, or an F32 tensor widened.
    ///
    /// # Errors
    /// When it is missing, has another dtype, or cannot be read.
    pub fn read_f64(&mut self, name: &str) -> Result<Vec<f64>, FileError> {
        let entry = self.entry(name)?;
        match entry.dtype {
            Dtype::F32 => Ok(self.read_f32(name)?.into_iter().map(f64::from).collect()),
            Dtype::F64 => {
                self.require_memory(name, entry.bytes)?;
                let mut values = vec![0f64; (entry.bytes / 8) as usize];
                self.read_into(&entry, bytemuck::cast_slice_mut(&mut values))?;
                if cfg!(target_endian = "big") {
                    values.iter_mut().for_each(|value| *value = f64::from_bits(value.to_bits().swap_bytes()));
                }
                Ok(values)
            }
            _ => Err(self.wrong_dtype(name, &entry, "F64 or F32")),
        }
    }

    fn entry(&self, name: &str) -> Result<Entry, FileError> {
        self.entries.get(name).cloned().ok_or_else(|| FileError::Missing {
            path: self.path.clone(),
            name: name.to_owned(),
            expected: "a tensor of this name".to_owned(),
            similar: nearest(name, self.entries.keys().map(String::as_str)),
        })
    }

    /// A sparse file takes no space on disk, but its tensors do in memory.
    fn require_memory(&self, name: &str, needed: u64) -> Result<(), FileError> {
        match available_bytes() {
            Some(available) if needed > available => {
                Err(FileError::Memory { path: self.path.clone(), name: name.to_owned(), needed, available })
            }
            _ => Ok(()),
        }
    }

    fn wrong_dtype(&self, name: &str, entry: &Entry, expected: &'static str) -> FileError {
        let found = format!("{:?}{:?}", entry.dtype, entry.shape);
        FileError::Dtype { path: self.path.clone(), name: name.to_owned(), expected, found }
    }

    fn read_into(&mut self, entry: &Entry, bytes: &mut [u8]) -> Result<(), FileError> {
        self.file
            .seek(SeekFrom::Start(entry.start))
            .and_then(|_| self.file.read_exact(bytes))
            .map_err(|source| FileError::Io { action: "read", path: self.path.clone(), source })
    }
}

/// The candidate whose name is most like `name`, if any is likely to be a misspelling of it.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<String> {
    /// Below this Jaro-Winkler similarity, names of a block's tensors are as unlike as unrelated words.
    const LIKELY: f64 = 0.8;
    candidates
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity >= LIKELY)
        // Ties go to the first name in order, so that the message is the same every time.
        .fold(None, |best: Option<(f64, &str)>, next| match best {
            Some(best) if best.0 > next.0 || (best.0 == next.0 && best.1 <= next.1) => Some(best),
            _ => Some(next),
        })
        .map(|(_, candidate)| candidate.to_owned())
}
