//! Which measured times a compilation rests on.

use std::path::Path;
use std::sync::Arc;

use hyenac_kernels::{Device, Tuning, TuningDatabase};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files::FileError;

/// Where measured times of schedules come from. They matter where kernels are scheduled, so not for the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TuningChoice {
    /// The database that hyenac ships for the device, if it ships one.
    #[default]
    Shipped,
    /// Nowhere: all times are modelled.
    None,
    /// A file that `hyenac tune` wrote.
    File(TuningFile),
}

/// A tuning database in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningFile {
    /// Its name, for messages.
    pub name: String,
    /// Its text.
    pub text: String,
}

impl TuningChoice {
    /// The times, ready for a device.
    ///
    /// # Errors
    /// When the file is no tuning database, or one of another device.
    pub fn load(&self, device: &Device) -> Result<Option<Arc<Tuning>>, Error> {
        match self {
            TuningChoice::Shipped => Ok(Tuning::shipped(device)),
            TuningChoice::None => Ok(None),
            TuningChoice::File(file) => {
                let tuning = Tuning::new(&file.parse()?, device);
                Ok(Some(Arc::new(tuning.map_err(|source| Error::Tuning { name: file.name.clone(), source })?)))
            }
        }
    }
}

impl TuningFile {
    /// Reads a file, and checks that it is a tuning database.
    ///
    /// # Errors
    /// When it cannot be read as text, or is none.
    pub fn read(path: &Path) -> Result<TuningFile, Error> {
        let io = |source| FileError::Io { action: "read", path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(io)?;
        let file = TuningFile { name: path.display().to_string(), text };
        file.parse()?;
        Ok(file)
    }

    /// The database.
    ///
    /// # Errors
    /// When its text is none.
    pub fn parse(&self) -> Result<TuningDatabase, Error> {
        TuningDatabase::parse(&self.text).map_err(|source| Error::Tuning { name: self.name.clone(), source })
    }
}
