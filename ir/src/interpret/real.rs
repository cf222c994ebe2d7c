//! The two types the interpreter computes in.

use std::ops::AddAssign;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use realfft::{ComplexToReal, FftNum, RealFftPlanner, RealToComplex};

/// Transforms above this size are planned afresh, so that the cache of plans stays small.
const MAX_CACHED_FFT: usize = 1 << 22;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// f32 or f64.
pub trait Real: FftNum + Default + PartialOrd + AddAssign + sealed::Sealed {
    /// Rounds a double to this type.
    fn from_double(value: f64) -> Self;
    /// Widens exactly.
    fn to_double(self) -> f64;
    /// `e^x`.
    fn exp(self) -> Self;
    /// Sine of radians.
    fn sin(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The plan of a forward transform.
    fn forward(size: usize) -> Arc<dyn RealToComplex<Self>>;
    /// The plan of an inverse transform, without the factor `1 / size`.
    fn inverse(size: usize) -> Arc<dyn ComplexToReal<Self>>;
}

macro_rules! real {
    ($ty:ty) => {
        const _: () = {
            static PLANNER: LazyLock<Mutex<RealFftPlanner<$ty>>> = LazyLock::new(|| Mutex::new(RealFftPlanner::new()));

            #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
            impl Real for $ty {
                fn from_double(value: f64) -> Self {
                    value as $ty
                }
                fn to_double(self) -> f64 {
                    self as f64
                }
                fn exp(self) -> Self {
                    <$ty>::exp(self)
                }
                fn sin(self) -> Self {
                    <$ty>::sin(self)
                }
                fn tanh(self) -> Self {
                    <$ty>::tanh(self)
                }
                fn forward(size: usize) -> Arc<dyn RealToComplex<Self>> {
                    if size > MAX_CACHED_FFT {
                        return RealFftPlanner::new().plan_fft_forward(size);
                    }
                    PLANNER.lock().unwrap_or_else(PoisonError::into_inner).plan_fft_forward(size)
                }
                fn inverse(size: usize) -> Arc<dyn ComplexToReal<Self>> {
                    if size > MAX_CACHED_FFT {
                        return RealFftPlanner::new().plan_fft_inverse(size);
                    }
                    PLANNER.lock().unwrap_or_else(PoisonError::into_inner).plan_fft_inverse(size)
                }
            }
        };
    };
}

real!(f32);
real!(f64);
