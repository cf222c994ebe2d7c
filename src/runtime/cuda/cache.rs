//! What compilation produced, on disk: entries found by a hash of everything they depend on.
//!
//! An entry is a file: 8 bytes of magic, the header's length (4 bytes, little endian), a JSON header with the
//! payload's length and SHA-256, the payload. It is written beside its place and renamed, so that readers see
//! a whole entry or none. An entry that does not verify is made again, never trusted. Nothing here is an error to
//! the caller: a folder that cannot be written costs time, and a warning.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hyenac_kernels::KernelSource;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::discovery;
use super::error::Result;
use super::nvrtc::{self, CompiledKernel, Resources};

/// First bytes of every entry; the digit is the version of the format.
const MAGIC: &[u8; 8] = b"HYENACE1";

/// Longest header that is read, bytes. A longer one is corrupt.
const LONGEST_HEADER: usize = 1 << 24;

/// A folder of entries, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    folder: Option<PathBuf>,
}

#[derive(Serialize, Deserialize)]
struct Header<Meta> {
    kind: String,
    key: String,
    payload_bytes: u64,
    payload_sha256: String,
    meta: Meta,
}

/// What is stored beside a kernel's machine code and PTX, which follow one another in the payload.
#[derive(Serialize, Deserialize)]
struct KernelMeta {
    name: String,
    arch: String,
    cubin_bytes: u64,
    resources: Resources,
    log: String,
}

impl Cache {
    /// The folder that `HYENAC_CACHE` names (`off` for none), or the user's cache folder.
    pub fn from_environment() -> Cache {
        match std::env::var_os("HYENAC_CACHE") {
            Some(value) if value == "off" => Cache::disabled(),
            Some(value) if !value.is_empty() => Cache::at(value),
            _ => Cache {
                folder: directories::ProjectDirs::from("", "", "hyenac").map(|folders| folders.cache_dir().to_owned()),
            },
        }
    }

    /// A cache in this folder, which is made when the first entry is written.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: Some(folder.into()) }
    }

    /// A cache that remembers nothing.
    pub fn disabled() -> Cache {
        Cache { folder: None }
    }

    /// Where entries lie.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// A key of everything an entry depends on. The version of this crate is always part of it.
    pub fn key(parts: &[&[u8]]) -> String {
        let mut hash = Sha256::new();
        for part in [env!("CARGO_PKG_VERSION").as_bytes()].iter().chain(parts) {
            // Lengths keep apart what concatenation would unite.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hexadecimal(&hash.finalize())
    }

    /// The bytes stored under a key, or else those that `make` returns, which are then stored.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get_or_put<E>(
        &self,
        kind: &str,
        key: &str,
        make: impl FnOnce() -> std::result::Result<Vec<u8>, E>,
    ) -> std::result::Result<Vec<u8>, E> {
        if let Some(((), payload)) = self.get(kind, key) {
            return Ok(payload);
        }
        let payload = make()?;
        self.put(kind, key, &(), &payload);
        Ok(payload)
    }

    /// A kernel from the cache, or compiled and stored.
    ///
    /// # Errors
    /// As [`nvrtc::compile`].
    pub fn compiled_kernel(&self, kernel: &KernelSource, arch: &str) -> Result<CompiledKernel> {
        nvrtc::check_architecture(arch)?;
        let library = discovery::nvrtc()?;
        let (major, minor) = library.version();
        let options = nvrtc::options(arch).join("\n");
        let version = format!("{major}.{minor}");
        let parts = [kernel.name.as_bytes(), kernel.source.as_bytes(), options.as_bytes(), version.as_bytes()];
        let key = Cache::key(&parts);
        if let Some((meta, payload)) = self.get::<KernelMeta>("kernel", &key)
            && let Some(compiled) = stored_kernel(meta, payload, kernel, arch)
        {
            return Ok(compiled);
        }
        let compiled = nvrtc::compile_with(library, kernel, arch)?;
        let meta = KernelMeta {
            name: compiled.name.clone(),
            arch: compiled.arch.clone(),
            cubin_bytes: compiled.cubin.len() as u64,
            resources: compiled.resources,
            log: compiled.log.clone(),
        };
        let payload = [compiled.cubin.as_slice(), compiled.ptx.as_bytes()].concat();
        self.put("kernel", &key, &meta, &payload);
        Ok(compiled)
    }

    fn path(&self, kind: &str, key: &str) -> Option<PathBuf> {
        // Both become file names: anything but plain characters would leave the folder.
        let plain = |text: &str| -> String {
            text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
        };
        Some(self.folder.as_ref()?.join(plain(kind)).join(plain(key)))
    }

    /// The entry under a key, verified; `None` when there is none that can be trusted.
    fn get<Meta: for<'de> Deserialize<'de>>(&self, kind: &str, key: &str) -> Option<(Meta, Vec<u8>)> {
        let path = self.path(kind, key)?;
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!("cache entry {} cannot be read: {error}", path.display());
                return None;
            }
        };
        let entry = verified(&bytes, kind, key);
        if entry.is_none() {
            tracing::warn!("cache entry {} is corrupt and is made again", path.display());
        }
        entry
    }

    fn put<Meta: Serialize>(&self, kind: &str, key: &str, meta: &Meta, payload: &[u8]) {
        let Some(path) = self.path(kind, key) else { return };
        let header = Header {
            kind: kind.to_owned(),
            key: key.to_owned(),
            payload_bytes: payload.len() as u64,
            payload_sha256: hexadecimal(&Sha256::digest(payload)),
            meta,
        };
        let write = || -> io::Result<()> {
            let header = serde_json::to_vec(&header)?;
            let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
            std::fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(MAGIC)?;
            file.write_all(&u32::try_from(header.len()).map_err(io::Error::other)?.to_le_bytes())?;
            file.write_all(&header)?;
            file.write_all(payload)?;
            file.persist(&path)?;
            Ok(())
        };
        if let Err(error) = write() {
            tracing::warn!("cache entry {} cannot be written: {error}", path.display());
        }
    }
}

/// Header and payload of an entry whose every byte is accounted for.
fn verified<Meta: for<'de> Deserialize<'de>>(bytes: &[u8], kind: &str, key: &str) -> Option<(Meta, Vec<u8>)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > LONGEST_HEADER {
        return None;
    }
    let (header, payload) = rest.split_at_checked(length)?;
    let header: Header<Meta> = serde_json::from_slice(header).ok()?;
    let whole = header.kind == kind
        && header.key == key
        && header.payload_bytes == payload.len() as u64
        && header.payload_sha256 == hexadecimal(&Sha256::digest(payload));
    whole.then(|| (header.meta, payload.to_vec()))
}

/// The kernel of a verified entry, unless its header is not about it.
fn stored_kernel(meta: KernelMeta, mut payload: Vec<u8>, kernel: &KernelSource, arch: &str) -> Option<CompiledKernel> {
    let cubin_bytes = usize::try_from(meta.cubin_bytes).ok()?;
    if meta.name != kernel.name || meta.arch != arch || cubin_bytes > payload.len() {
        return None;
    }
    let ptx = String::from_utf8(payload.split_off(cubin_bytes)).ok()?;
    Some(CompiledKernel {
        name: meta.name,
        arch: meta.arch,
        cubin: payload,
        ptx,
        resources: meta.resources,
        log: meta.log,
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn make(text: &'static str) -> impl FnOnce() -> std::result::Result<Vec<u8>, Infallible> {
        move || Ok(text.as_bytes().to_vec())
    }

    fn entry(cache: &Cache, kind: &str, key: &str) -> PathBuf {
        let path = cache.path(kind, key).unwrap();
        assert!(path.is_file());
        path
    }

    #[test]
    fn an_entry_is_made_once_and_then_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("made/when/needed"));
        assert_eq!(cache.get_or_put("plan", "k", make("first")), Ok(b"first".to_vec()));
        assert_eq!(cache.get_or_put("plan", "k", make("second")), Ok(b"first".to_vec()));
        assert_eq!(cache.get_or_put("other", "k", make("third")), Ok(b"third".to_vec()));
        assert_eq!(cache.get_or_put("plan", "empty", make("")), Ok(Vec::new()));
        assert_eq!(cache.get_or_put("plan", "fails", || Err("no")), Err("no"));
        // No temporary file stays behind.
        let files = std::fs::read_dir(cache.folder().unwrap().join("plan")).unwrap().count();
        assert_eq!(files, 2);
    }

    #[test]
    fn every_truncation_and_every_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        cache.put("plan", "k", &(), b"payload");
        let path = entry(&cache, "plan", "k");
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(verified::<()>(&whole, "plan", "k"), Some(((), b"payload".to_vec())));
        for length in 0..whole.len() {
            assert_eq!(verified::<()>(&whole[..length], "plan", "k"), None, "cut at {length}");
        }
        for position in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[position] ^= 1;
            assert_eq!(verified::<()>(&flipped, "plan", "k"), None, "flipped at {position}");
        }
        assert_eq!(verified::<()>(&[&whole[..], b"x"].concat(), "plan", "k"), None);
        assert_eq!(verified::<()>(&whole, "plan", "another key"), None);

        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(cache.get_or_put("plan", "k", make("made again")), Ok(b"made again".to_vec()));
        assert_eq!(cache.get_or_put("plan", "k", make("not needed")), Ok(b"made again".to_vec()));
    }

    #[test]
    fn keys_keep_parts_apart_and_cannot_leave_the_folder() {
        assert_ne!(Cache::key(&[b"ab", b"c"]), Cache::key(&[b"a", b"bc"]));
        assert_ne!(Cache::key(&[b"ab"]), Cache::key(&[b"ab", b""]));
        assert_eq!(Cache::key(&[b"ab"]).len(), 64);
        let cache = Cache::at("/cache");
        assert_eq!(cache.path("../kind", "../../key"), Some("/cache/___kind/______key".into()));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let cache = Cache::at(file.join("below a file"));
        assert_eq!(cache.get_or_put("plan", "k", make("made")), Ok(b"made".to_vec()));
        assert_eq!(Cache::disabled().get_or_put("plan", "k", make("made")), Ok(b"made".to_vec()));
    }

    #[test]
    fn kernels_come_back_as_they_were_compiled() {
        let Some(_) = discovery::nvrtc_for_tests() else { return };
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let kernel = KernelSource {
            name: "twice".to_owned(),
            source: "extern \"C\" __global__ void twice(float* a) { __shared__ float s[8]; s[threadIdx.x] = a[0]; \
                     __syncthreads(); a[1] = s[7 - threadIdx.x]; }"
                .to_owned(),
        };
        let compiled = cache.compiled_kernel(&kernel, "sm_90a").unwrap();
        assert_eq!(compiled.resources.static_shared_bytes, 32);
        let files: Vec<PathBuf> =
            std::fs::read_dir(folder.path().join("kernel")).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        let modified = || std::fs::metadata(&files[0]).unwrap().modified().unwrap();
        let first = modified();
        assert_eq!(cache.compiled_kernel(&kernel, "sm_90a").as_ref(), Ok(&compiled));
        assert_eq!(modified(), first, "a hit writes nothing");

        let mut corrupt = std::fs::read(&files[0]).unwrap();
        let middle = corrupt.len() / 2;
        corrupt[middle] ^= 0xff;
        std::fs::write(&files[0], &corrupt).unwrap();
        assert_eq!(cache.compiled_kernel(&kernel, "sm_90a").as_ref(), Ok(&compiled));
        assert_ne!(std::fs::read(&files[0]).unwrap(), corrupt, "the corrupt entry was replaced");

        cache.compiled_kernel(&kernel, "sm_80").unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("kernel")).unwrap().count(), 2);
    }
}
