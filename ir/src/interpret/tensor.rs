//! Dense tensors of the interpreter.

use rayon::prelude::*;

use super::real::Real;
use crate::error::IrError;
use crate::types::{DType, Type};

/// Above this many elements an allocation is tried before it is made, so that a size no machine has
/// is an error and not the end of the process.
const LARGE: usize = 1 << 26;

/// A dense row-major tensor.
///
/// Every real dtype is held as `T`; a complex tensor holds interleaved pairs, real part first, so that
/// its data is twice as long as its shape says.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor<T> {
    /// Extents, outermost first.
    pub shape: Vec<usize>,
    /// The elements, row-major; two for each element of a complex tensor.
    pub data: Vec<T>,
}

impl<T: Real> Tensor<T> {
    /// A real tensor.
    ///
    /// # Errors
    /// When the data is not as long as the shape says.
    pub fn new(shape: impl Into<Vec<usize>>, data: Vec<T>) -> Result<Tensor<T>, IrError> {
        let tensor = Tensor { shape: shape.into(), data };
        let ty = Type::f32(tensor.shape.clone());
        tensor.check("data", &ty)?;
        Ok(tensor)
    }

    /// Zeros of a type.
    ///
    /// # Errors
    /// When there is not enough memory.
    pub fn zeros(ty: &Type) -> Result<Tensor<T>, IrError> {
        let elements = ty.checked_elements().and_then(|n| n.checked_mul(components(ty.dtype)));
        let Some(elements) = elements else {
            return Err(IrError::Tensor { name: ty.to_string(), why: "its size overflows".to_owned() });
        };
        Ok(Tensor { shape: ty.shape.clone(), data: zeros(elements)? })
    }

    /// Whether the data is that of a complex tensor.
    pub fn is_complex(&self) -> bool {
        let elements = Type::f32(self.shape.clone()).checked_elements();
        elements.is_some_and(|elements| elements > 0 && Some(self.data.len()) == elements.checked_mul(2))
    }

    /// The same values in another precision.
    pub fn convert<U: Real>(&self) -> Tensor<U> {
        Tensor {
            shape: self.shape.clone(),
            data: self.data.par_iter().map(|x| U::from_double(x.to_double())).collect(),
        }
    }

    /// `|self - exact| / |exact|` in the Euclidean norm, or `|self|` when `exact` is zero; infinite when the
    /// shapes differ, NaN when an element is.
    pub fn relative_l2<U: Real>(&self, exact: &Tensor<U>) -> f64 {
        if self.shape != exact.shape || self.data.len() != exact.data.len() {
            return f64::INFINITY;
        }
        let (mut error, mut norm) = (0.0, 0.0);
        for (found, expected) in self.data.iter().zip(&exact.data) {
            let (found, expected) = (found.to_double(), expected.to_double());
            error += (found - expected) * (found - expected);
            norm += expected * expected;
        }
        if norm == 0.0 { f64::sqrt(error) } else { f64::sqrt(error / norm) }
    }

    /// Checks shape and length against a type.
    pub(super) fn check(&self, name: &str, ty: &Type) -> Result<(), IrError> {
        let refuse = |why: String| Err(IrError::Tensor { name: name.to_owned(), why });
        if self.shape != ty.shape {
            return refuse(format!("has shape {:?}, expected {:?}", self.shape, ty.shape));
        }
        let expected = ty.checked_elements().and_then(|n| n.checked_mul(components(ty.dtype)));
        if Some(self.data.len()) != expected {
            return refuse(format!("holds {} numbers, which is not what {ty} holds", self.data.len()));
        }
        Ok(())
    }
}

/// How many numbers one element takes.
pub(super) const fn components(dtype: DType) -> usize {
    match dtype {
        DType::C64 => 2,
        DType::F32 | DType::F16 | DType::Tf32 => 1,
    }
}

/// That many zeros.
///
/// # Errors
/// When there is not enough memory.
pub(super) fn zeros<T: Clone + Default>(length: usize) -> Result<Vec<T>, IrError> {
    if length > LARGE && Vec::<T>::new().try_reserve_exact(length).is_err() {
        return Err(IrError::Tensor {
            name: format!("{length} elements of {} bytes", size_of::<T>()),
            why: "not enough memory; use a smaller batch or sequence".to_owned(),
        });
    }
    Ok(vec![T::default(); length])
}
