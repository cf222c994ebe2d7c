//! Element types, shapes and binding times of values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How one element of a value is represented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary32, 4 bytes. All arithmetic of the IR happens in this type.
    F32,
    /// IEEE 754 binary16, 2 bytes. A storage and operand format.
    F16,
    /// A binary32 whose mantissa is rounded to 10 bits, 4 bytes. A storage and operand format.
    Tf32,
    /// A complex number of two binary32, 8 bytes, real part first. Only spectra have it.
    C64,
}

impl DType {
    /// Every dtype, in the order of their declaration.
    pub const ALL: [DType; 4] = [DType::F32, DType::F16, DType::Tf32, DType::C64];

    /// Size of one stored element in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            DType::F16 => 2,
            DType::F32 | DType::Tf32 => 4,
            DType::C64 => 8,
        }
    }

    /// The name used in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Tf32 => "tf32",
            DType::C64 => "c64",
        }
    }

    /// The dtype of this name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Whether an element is a real number.
    pub const fn is_real(self) -> bool {
        !matches!(self, DType::C64)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// When a value is known.
///
/// The order is that of time: a value is bound as late as its latest operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Binding {
    /// Depends on weights and constants only, so that frozen weights fix it once.
    Weights,
    /// Depends on the input of the call.
    Input,
}

impl Binding {
    /// The name used in the text format.
    pub const fn name(self) -> &'static str {
        match self {
            Binding::Weights => "weights",
            Binding::Input => "input",
        }
    }

    /// The binding of this name.
    pub fn from_name(name: &str) -> Option<Binding> {
        [Binding::Weights, Binding::Input].into_iter().find(|binding| binding.name() == name)
    }
}

/// Type of a value: a dense tensor, row-major in the order of its shape.
///
/// Another layout in memory is another value, behind a `transpose` or a `pad`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Type {
    /// Representation of an element.
    pub dtype: DType,
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Type {
    /// A tensor type.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Type {
        Type { dtype, shape: shape.into() }
    }

    /// A tensor of binary32.
    pub fn f32(shape: impl Into<Vec<usize>>) -> Type {
        Type::new(DType::F32, shape)
    }

    /// Number of elements, or `None` if it overflows.
    pub fn checked_elements(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
    }

    /// Size in bytes, or `None` if it overflows.
    pub fn checked_bytes(&self) -> Option<usize> {
        self.checked_elements()?.checked_mul(self.dtype.bytes())
    }

    /// Number of elements of a type that [`crate::infer`] has accepted, so that it cannot overflow.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in bytes of a type that [`crate::infer`] has accepted, so that it cannot overflow.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (axis, extent) in self.shape.iter().enumerate() {
            if axis > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{extent}")?;
        }
        f.write_str("]")
    }
}
