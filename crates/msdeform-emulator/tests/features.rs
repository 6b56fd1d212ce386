//! Every mechanism that kernels may use does what the hardware does, in any order of turns.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its shared functions"
)]

mod common;

use common::*;
use half::{bf16, f16};
use msdeform_emulator::{
    Buffer, Fault, Launch, LaunchStep, Order, TENSOR_MAP_BYTES, TensorMap, placeholder_address,
};

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 251) as f32 - 100.0).collect()
}

#[test]
fn shuffles_and_votes() {
    let kernel = test_kernel("warp_exchange", &[]);
    let launch = test_launch(1, 64, 64 * 4, vec![], Buffer::output(64 * 11 * 4), 0, 0);
    let words = u32_of_bytes(&launch_in_every_order(&kernel, &launch));
    for thread in 0..64u32 {
        let (lane, warp) = (thread % 32, thread / 32 * 32);
        let word = |lane: u32| 100 + warp + lane;
        let expected = [
            word(5),
            word(lane / 8 * 8 + (lane + 1) % 8),
            word(lane ^ 3),
            word(if lane % 16 >= 2 { lane - 2 } else { lane }),
            word(if lane % 4 < 3 { lane + 1 } else { lane }),
            (0..32).filter(|lane| lane % 3 == 0).fold(0, |bits, lane| bits | 1 << lane),
            u32::from(warp == 32),
            1,
            word(7),
            word(lane ^ 16),
            word(if lane < 16 { lane ^ 15 } else { lane }),
        ];
        assert_eq!(words[thread as usize * 11..][..11], expected, "thread {thread}");
    }
}

#[test]
fn block_barriers_named_barriers_and_atomics() {
    let kernel = test_kernel("block_sum", &[]);
    let (blocks, threads) = (3, 128);
    let input = ramp(blocks * threads);
    let output = [vec![0xFF; blocks * 4], vec![0; 8]].concat();
    let mut launch =
        test_launch(3, 128, threads * 4, bytes_of_f32(&input), Buffer::in_out(output), 0, 0);
    let bytes = launch_in_every_order(&kernel, &launch);
    let output = f32_of_bytes(&bytes);
    for block in 0..blocks {
        let sum: f32 = input[block * threads..][..threads].iter().sum();
        assert_eq!(output[block], 2.0 * sum);
    }
    assert_eq!(u32_of_bytes(&bytes)[blocks], 384);
    assert_eq!(output[blocks + 1], 192.0);
    // Threads in three dimensions are allowed, 1025 threads are not.
    if let LaunchStep::Kernel { block, .. } = &mut launch.steps[0] {
        *block = [1025, 1, 1];
    }
    let error = failure(&kernel, &launch).to_string();
    assert!(error.contains("no GPU takes this launch"), "{error}");
}

#[test]
fn steps_share_memory_in_any_order_of_blocks() {
    let kernel = test_kernels("two_steps", &["two_steps_draw", "two_steps_double"], &[]);
    let (blocks, grid) = (12, [2, 3, 2]);
    let output = Buffer::output((2 * blocks + 1) * 4);
    let mut launch = test_launch(1, 1, 0, vec![], output, blocks, 0);
    let kernel_step =
        |entry, grid| LaunchStep::Kernel { entry, grid, block: [32, 1, 1], shared_bytes: 0 };
    launch.steps = vec![
        // Zeroes only the counter; other memory stays poisoned until it is written.
        LaunchStep::Zero { buffer: 1, offset: blocks * 4, bytes: 4 },
        kernel_step(0, grid),
        kernel_step(1, [1, 1, 1]),
    ];
    let drawn_in = |block_order| {
        let launch = Launch { block_order, ..launch.clone() };
        let words = u32_of_bytes(&kernel.launch(&launch).unwrap()[0]);
        assert_eq!(words[blocks], blocks as u32, "every block ran once");
        let doubled: Vec<u32> = words[..blocks].iter().map(|ticket| 2 * ticket).collect();
        assert_eq!(words[blocks + 1..], doubled, "the second kernel saw the first one's work");
        words[..blocks].to_vec()
    };
    let ascending: Vec<u32> = (0..blocks as u32).collect();
    assert_eq!(drawn_in(Order::Ascending), ascending);
    assert_eq!(drawn_in(Order::Descending), ascending.iter().rev().copied().collect::<Vec<_>>());
    let mut shuffled = drawn_in(Order::Shuffled);
    assert_ne!(shuffled, ascending);
    shuffled.sort_unstable();
    assert_eq!(shuffled, ascending);

    launch.steps[0] = LaunchStep::Zero { buffer: 1, offset: (2 * blocks + 1) * 4, bytes: 1 };
    let error = failure(&kernel, &launch).to_string();
    assert!(error.contains("zeroing 1 bytes"), "{error}");
}

#[test]
fn every_way_to_load_store_and_add() {
    let kernel = test_kernel("memory_wrappers", &[]);
    let threads = 64;
    let input = ramp(threads * 4);
    let output = [vec![0xFF; 5 * threads * 16], vec![0; threads * 16]].concat();
    let launch = test_launch(1, 64, 4, bytes_of_f32(&input), Buffer::in_out(output), 0, 0);
    let rows = f32_of_bytes(&launch_in_every_order(&kernel, &launch));
    for (row, found) in rows.chunks(threads * 4).enumerate() {
        assert_eq!(found, input, "row {row}");
    }
}

#[test]
fn asynchronous_copies_in_groups() {
    let kernel = test_kernel("copy_pipeline", &[]);
    for count in [512, 1024, 1536 + 4 * 3] {
        let input = ramp(count);
        let launch =
            test_launch(1, 128, 2 * 512 * 4, bytes_of_f32(&input), Buffer::output(512), count, 0);
        let output = f32_of_bytes(&launch_in_every_order(&kernel, &launch));
        for (thread, &found) in output.iter().enumerate() {
            let other = (thread + 37) % 128;
            let expected: f32 =
                input.chunks(512).flat_map(|tile| tile.iter().skip(other * 4).take(4)).sum();
            assert_eq!(found, expected, "thread {thread} of {count} elements");
        }
    }
}

#[test]
fn producer_and_consumer_warps_over_mbarriers() {
    let kernel = test_kernel("specialised_warps", &[]);
    for tiles in [1, 2, 7] {
        let input = ramp(tiles * 64);
        let shared_bytes = 2 * 64 * 4 + 4 * 8;
        let launch = test_launch(
            2,
            128,
            shared_bytes,
            bytes_of_f32(&input),
            Buffer::output(96 * 4),
            tiles * 64,
            0,
        );
        let output = f32_of_bytes(&launch_in_every_order(&kernel, &launch));
        for (consumer, &found) in output.iter().enumerate() {
            let expected: f32 = input.chunks(64).map(|tile| tile[consumer % 64]).sum();
            assert_eq!(found, expected, "consumer {consumer} of {tiles} tiles");
        }
    }
}

/// Two blocks of four warps over so many items.
fn loop_with_a_barrier(items: usize) -> Launch {
    let input = bytes_of_f32(&ramp(items));
    test_launch(2, 128, 8, input, Buffer::output(items * 4), items, 0)
}

#[test]
fn a_barrier_in_a_persistent_loop_counts_warps_that_have_left() {
    let kernel = test_kernel("tail_barrier", &["-DLEAVES_ALONE=1"]);
    // Multiples of the grid's items hide the mistake.
    launch_in_every_order(&kernel, &loop_with_a_barrier(16));
    for items in [1, 7, 17] {
        let error = failure(&kernel, &loop_with_a_barrier(items));
        assert_eq!(fault_of(&error), Some(Fault::Deadlock), "{items} items: {error}");
        assert!(error.to_string().contains("mbarrier"), "{error}");
    }
}

#[test]
fn a_barrier_in_a_persistent_loop_that_every_warp_reaches_works() {
    let kernel = test_kernel("tail_barrier", &["-DLEAVES_ALONE=0"]);
    for items in [1, 7, 16, 17] {
        let output = f32_of_bytes(&launch_in_every_order(&kernel, &loop_with_a_barrier(items)));
        let expected: Vec<f32> = ramp(items).iter().map(|x| 2.0 * x).collect();
        assert_eq!(output, expected);
    }
}

#[test]
fn tensor_copies_fill_the_outside_with_zeros() {
    let kernel = test_kernel("tensor_tile", &[]);
    let (depth, height, width) = (3, 4, 8u32);
    let values: Vec<u16> = (1..=(depth * height * width) as u16).collect();
    let map = TensorMap {
        base: placeholder_address(0),
        element_bytes: 2,
        size: vec![width, height, depth],
        stride_bytes: vec![u64::from(width) * 2, u64::from(width * height) * 2],
        box_size: vec![width, 2, 2],
    };
    let box_elements = (width * 2 * 2) as usize;
    let mut params = map.encode().unwrap().to_vec();
    assert_eq!(params.len(), TENSOR_MAP_BYTES);
    params.extend(placeholder_address(1).to_le_bytes());
    params.extend((box_elements as u32 * 2).to_le_bytes());
    params.extend([0; 4 + 48]);
    let grid = [height + 1, depth + 1, 1];
    let blocks = ((height + 1) * (depth + 1)) as usize;
    let mut launch = Launch::new(grid, [32, 1, 1], box_elements * 2 + 8, params);
    launch.buffers = vec![
        Buffer::input(values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        Buffer::output(blocks * box_elements * 2),
    ];
    let bytes = launch_in_every_order(&kernel, &launch);
    let mut found = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    for block in 0..blocks as i64 {
        let (y0, z0) = (block % i64::from(height + 1) - 1, block / i64::from(height + 1) - 1);
        for (z, y) in [(z0, y0), (z0, y0 + 1), (z0 + 1, y0), (z0 + 1, y0 + 1)] {
            for x in 0..i64::from(width) {
                let inside =
                    (0..i64::from(height)).contains(&y) && (0..i64::from(depth)).contains(&z);
                let index = (z * i64::from(height) + y) * i64::from(width) + x;
                let expected = if inside { values[index as usize] } else { 0 };
                assert_eq!(found.next(), Some(expected), "block {block} at {z} {y} {x}");
            }
        }
    }
    let broken = TensorMap { box_size: vec![4, 2, 2], ..map }.encode().unwrap_err().to_string();
    assert!(broken.contains("multiple of 16 bytes"), "{broken}");
}

#[test]
fn matrix_products_and_their_fragments() {
    let a: Vec<f32> = (0..256).map(|i| (i * 7 % 23) as f32 * 0.25 - 2.0).collect();
    let b: Vec<f32> = (0..128).map(|i| (i * 5 % 19) as f32 * 0.5 - 4.0).collect();
    for bfloat in [false, true] {
        let kernel = test_kernel(
            "matrix_product",
            &[if bfloat { "-DMSDA_TEST_BFLOAT=1" } else { "-DMSDA_TEST_BFLOAT=0" }],
        );
        let input = a.iter().chain(&b).flat_map(|&x| {
            if bfloat { bf16::from_f32(x).to_le_bytes() } else { f16::from_f32(x).to_le_bytes() }
        });
        let launch =
            test_launch(1, 32, (256 + 128) * 2, input.collect(), Buffer::output(2 * 128 * 4), 0, 0);
        let output = f32_of_bytes(&launch_in_every_order(&kernel, &launch));
        for (index, &found) in output.iter().enumerate() {
            let (row, column) = (index % 128 / 8, index % 8);
            let product: f32 = (0..16).map(|k| a[row * 16 + k] * b[k * 8 + column]).sum();
            assert_eq!(found, product + 1.0, "bfloat {bfloat} row {row} column {column}");
        }
    }
}

/// Whether bits are equal, or both are NaN.
fn is_same(found: impl Into<f64>, expected: impl Into<f64>) -> bool {
    let (found, expected) = (found.into(), expected.into());
    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
}

/// Whether `found` is `a * b + c` rounded once, to nearest, ties to even; for factors whose product is
/// exact in `f64`. `overflow` stands for infinity, as it does when rounding.
fn is_rounded_fma(
    found: u16,
    [a, b, c]: [f64; 3],
    overflow: f64,
    decode: impl Fn(u16) -> f64,
) -> bool {
    let value = |bits: u16| {
        let value = decode(bits);
        if value.is_infinite() { overflow.copysign(value) } else { value }
    };
    let (product, sum) = (a * b, a * b + c);
    if sum.is_nan() || decode(found).is_nan() {
        return sum.is_nan() && decode(found).is_nan();
    }
    if sum.abs() >= overflow {
        return value(found) == overflow.copysign(sum);
    }
    // The rounding error of the addition decides between two neighbours that are equally near to the sum.
    let part = sum - product;
    let lost = (product - (sum - part)) + (c - part);
    let distance = (value(found) - sum).abs();
    let magnitude = found & 0x7fff;
    [magnitude.checked_sub(1), Some(magnitude + 1)]
        .into_iter()
        .flatten()
        .map(|neighbour| value(neighbour | found & 0x8000))
        .filter(|neighbour| !neighbour.is_nan())
        .all(|neighbour| match distance.total_cmp(&(neighbour - sum).abs()) {
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Greater => false,
            std::cmp::Ordering::Equal if lost == 0.0 => found.is_multiple_of(2),
            std::cmp::Ordering::Equal => (value(found) > sum) == (lost > 0.0),
        })
}

#[test]
fn half_and_bfloat_agree_with_the_crate_half() {
    let kernel = test_kernel("number_formats", &[]);
    let count = 65_536usize;
    // Bits spread over the whole range of floats, subnormal halves and ties among them.
    let words: Vec<u32> = (0..count as u32)
        .map(|i| match i % 3 {
            0 => i.wrapping_mul(0x9E37_79B9),
            1 => (f32::from(f16::from_bits(i as u16)).to_bits()).wrapping_add(0x1000),
            _ => (i << 16) | 0x8000,
        })
        .collect();
    let input = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let launch = test_launch(256, 256, 0, input, Buffer::output(count * 6 * 4), count, 0);
    let rows =
        u32_of_bytes(&kernel.launch(&launch).unwrap_or_else(|error| panic!("{error}")).remove(0));
    for (i, row) in rows.chunks_exact(6).enumerate() {
        let bits = i as u16;
        let (half, bfloat) = (f16::from_bits(bits), bf16::from_bits(bits));
        assert!(is_same(f32::from_bits(row[0]), half), "half {bits:04x}");
        assert!(is_same(f32::from_bits(row[1]), bfloat), "bfloat {bits:04x}");
        let number = f32::from_bits(words[i]);
        let [low, high] = [row[3], row[3] >> 16].map(|bits| bf16::from_bits(bits as u16));
        let half = f16::from_bits(row[2] as u16);
        assert!(is_same(half, f16::from_f32(number)), "{number:e} to half");
        assert!(is_same(low, bf16::from_f32(number)), "{number:e} to bfloat");
        assert!(is_same(high, bf16::from_f32(-number)), "{number:e} to bfloat");
        let other = words[(i + 1) % count];
        for shift in [0, 16] {
            let part = |word: u32| (word >> shift) as u16;
            let half = |bits| f16::from_bits(bits).to_f64();
            let operands = [bits, part(other), part(words[i])].map(half);
            assert!(is_rounded_fma(part(row[4]), operands, 65536.0, half), "half {operands:?}");
            let bfloat = |bits| bf16::from_bits(bits).to_f64();
            let operands = [bits, part(other), part(words[i])].map(bfloat);
            let overflow = 2f64.powi(128);
            assert!(
                is_rounded_fma(part(row[5]), operands, overflow, bfloat),
                "bfloat {operands:?}"
            );
        }
    }
}
