//! Sizes of Fourier transforms.

/// The smallest even size of at least `2 length - 1` whose half has no prime factor above 7.
///
/// `2 length - 1` is the length of the linear convolution of two sequences of `length`, so that no output
/// wraps around; the half is the size of the complex transform that a real one of this size comes down to.
pub fn fft_size(length: usize) -> usize {
    let mut half = length.max(1);
    while !is_smooth(half) {
        half += 1;
    }
    2 * half
}

fn is_smooth(mut n: usize) -> bool {
    for factor in [2, 3, 5, 7] {
        while n.is_multiple_of(factor) {
            n /= factor;
        }
    }
    n == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sizes() {
        for (length, size) in
            [(1, 2), (2, 4), (11, 24), (13, 28), (131, 270), (541, 1120), (997, 2000), (1024, 2048), (2053, 4116)]
        {
            assert_eq!(fft_size(length), size, "length {length}");
        }
    }

    #[test]
    fn is_the_smallest_that_qualifies() {
        for length in 1..600 {
            let qualifies = |n: usize| n.is_multiple_of(2) && n >= 2 * length - 1 && is_smooth(n / 2);
            let smallest = (1..).find(|&n| qualifies(n)).unwrap();
            assert_eq!(fft_size(length), smallest, "length {length}");
        }
    }
}
