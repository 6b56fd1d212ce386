//! What the arithmetic units can do at best: the yardstick of the laboratory.

use std::hint::black_box;

use super::isa::{Isa, Kernel};
use super::simd::Simd;

/// Sums that do not wait for each other: two units with a latency of four or five cycles are kept busy, and the
/// smallest register file holds them.
const CHAINS: usize = 12;
/// Multiply-adds of a chain in a round.
const UNROLL: usize = 8;

/// Does nothing but multiply-adds in registers, on the calling thread; returns the floating-point operations
/// (two each). An instruction set that this machine lacks is replaced by plain Rust.
pub fn multiply_adds(isa: Isa, rounds: usize) -> u64 {
    let isa = if isa.is_available() { isa } else { Isa::Scalar };
    black_box(isa.run(Chains { rounds }));
    2 * (isa.lanes() * CHAINS * UNROLL * rounds) as u64
}

struct Chains {
    rounds: usize,
}

impl Kernel for Chains {
    type Output = [f32; 4];

    #[inline(always)]
    unsafe fn call<S: Simd>(self) -> [f32; 4] {
        // SAFETY: the caller answers for the instruction set; no pointers are involved.
        unsafe {
            // Converges to one half: no overflow, no denormals, and nothing the compiler could work out.
            let (factor, term) = (S::splat(black_box(0.5)), S::splat(black_box(0.25)));
            let mut sums = [S::splat(black_box(1.0)); CHAINS];
            for _ in 0..self.rounds {
                for _ in 0..UNROLL {
                    for sum in &mut sums {
                        *sum = S::mul_add(*sum, factor, term);
                    }
                }
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total = S::add(total, *sum);
            }
            S::sum_each([total; 4])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chain_arrives_where_it_should_and_operations_are_counted() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            // x -> x / 2 + 1 / 4 tends to 1 / 2, in all lanes of all chains.
            let expected = 0.5 * (CHAINS * isa.lanes()) as f32;
            for sum in isa.run(Chains { rounds: 40 }) {
                assert!((sum / expected - 1.0).abs() < 1e-5, "{isa}: {sum}");
            }
            assert_eq!(multiply_adds(isa, 3), (2 * isa.lanes() * CHAINS * UNROLL * 3) as u64);
        }
        assert!(multiply_adds(Isa::Neon, 1) > 0 && multiply_adds(Isa::Avx512, 1) > 0);
    }
}
