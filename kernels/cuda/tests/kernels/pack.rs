use half::f16;
use hypic_cuda::layout::{state_at, tile_at};
use hypic_cuda::{
    Buffer, Codes, Places, StoredAs, bounds, checksum, pack_rows, pack_tiles, unpack_rows, unpack_tiles,
};
use rand::RngExt;
use xxhash_rust::xxh3::xxh3_64;

use crate::run::{assert_close, bits, on_devices};
use crate::truth::{fresh, nan, normal};

#[test]
fn tiles_come_back_within_their_rounding_and_lie_where_the_layout_says() {
    let mut rng = fresh();
    for width in [64, 128] {
        let square = width * width;
        let t: Vec<f32> = (0..2 * square).map(|_| rng.random_range(-1.0..1.0)).collect();
        let s: Vec<f32> = (0..2 * square).map(|_| 3.0 * normal(&mut rng)).collect();
        for (stored, bound_t, bound_s) in [
            (StoredAs::F16, bounds::STORED_F16, bounds::STORED_F16),
            (StoredAs::F32, bounds::STORED_PAIR, 0.0),
        ] {
            let size = (square * stored.size()) as u64;
            // The second place has no T: a dead head.
            let places = [(Some(2 * size), Some(0)), (None, Some(size))];
            on_devices(|device| {
                let [t_on, s_on] = [&t, &s].map(|values| Buffer::from_slice(device, values).unwrap());
                let mut arena = Buffer::from_slice(device, &vec![0xffu8; 3 * size as usize]).unwrap();
                let places = Places::new(device, width, stored, &places).unwrap();
                pack_tiles(device, &places, [&t_on, &s_on], &mut arena).unwrap();
                let bytes = arena.read().unwrap();
                let f16_at = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
                for (row, column) in [(0, 0), (5, 61), (width - 1, width - 1), (17, width / 2)] {
                    let x = t[row * width + column];
                    let stored_t = f16_at(2 * size as usize + 2 * tile_at(width, row, column));
                    assert_eq!(stored_t, f16::from_f32(x).to_f32());
                    if stored == StoredAs::F16 {
                        let x = s[row * width + column];
                        assert_eq!(f16_at(2 * state_at(width, row, column)), f16::from_f32(x).to_f32());
                    }
                }
                let (mut t_back, mut s_back) = (nan(device, 2 * square), nan(device, 2 * square));
                unpack_tiles(device, &places, &arena, [&mut t_back, &mut s_back]).unwrap();
                let (t_back, s_back) = (t_back.read().unwrap(), s_back.read().unwrap());
                let expected = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
                assert_close("T", t_back[..square].iter().copied(), &expected(&t[..square]), bound_t);
                assert_close("S", s_back.iter().copied(), &expected(&s), bound_s);
                assert!(t_back[square..].iter().all(|&x| x == 0.0), "a dead head's T is zero");
                bytes
            });
        }
    }
}

#[test]
fn values_over_the_range_of_fp16_are_clamped() {
    on_devices(|device| {
        let square = 64 * 64;
        let t = Buffer::zeros(device, square).unwrap();
        let s = Buffer::from_slice(device, &[vec![1e9f32; 64], vec![-1e9; square - 64]].concat()).unwrap();
        let mut arena = Buffer::zeros(device, 2 * square).unwrap();
        let places = Places::new(device, 64, StoredAs::F16, &[(None, Some(0))]).unwrap();
        pack_tiles(device, &places, [&t, &s], &mut arena).unwrap();
        let (mut t, mut s) = (nan(device, square), nan(device, square));
        unpack_tiles(device, &places, &arena, [&mut t, &mut s]).unwrap();
        let s = s.read().unwrap();
        assert!(s[..64].iter().all(|&x| x == 65504.0) && s[64..].iter().all(|&x| x == -65504.0));
    });
}

#[test]
fn eight_bit_rows_come_back_within_their_rounding() {
    let mut rng = fresh();
    let (rows, width) = (13, 128);
    let mut x: Vec<f32> = (0..rows * width).map(|_| normal(&mut rng)).collect();
    x[width..2 * width].fill(0.0);
    for codes in [Codes::Int8, Codes::Fp8] {
        on_devices(|device| {
            let values = Buffer::from_slice(device, &x).unwrap();
            let mut coded = Buffer::from_slice(device, &vec![0xffu8; rows * (4 + width)]).unwrap();
            pack_rows(device, codes, width, &values, &mut coded).unwrap();
            let mut back = nan(device, x.len());
            unpack_rows(device, codes, width, &coded, &mut back).unwrap();
            let back = back.read().unwrap();
            for (row, found) in x.chunks(width).zip(back.chunks(width)) {
                let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
                for (&x, &y) in row.iter().zip(found) {
                    let error = f64::from((x - y).abs());
                    let allowed = match codes {
                        Codes::Int8 => bounds::STORED_INT8 * f64::from(largest),
                        Codes::Fp8 => {
                            bounds::STORED_FP8 * f64::from(x.abs()).max(f64::from(largest) / 448.0 / 64.0)
                        }
                    };
                    assert!(error <= allowed, "{codes:?}: {x} came back as {y}");
                }
            }
            bits(&back)
        });
    }
}

#[test]
fn checksums_equal_xxh3_at_every_length() {
    let mut rng = fresh();
    let bytes: Vec<u8> = (0..300_000).map(|_| rng.random()).collect();
    let lengths = [248, 256, 1016, 1024, 1032, 1088, 2048, 32 * 1024, 33 * 1024, 33 * 1024 + 8, 200_000];
    let parts: Vec<(u64, u64)> =
        lengths.iter().map(|&length| (8 * rng.random_range(0..100), length)).collect();
    on_devices(|device| {
        let on_device = Buffer::from_slice(device, &bytes).unwrap();
        let sums = checksum(device, &on_device, &parts).unwrap();
        for (&(offset, length), sum) in parts.iter().zip(&sums) {
            assert_eq!(*sum, xxh3_64(&bytes[offset as usize..][..length as usize]), "{length} bytes");
        }
        assert!(checksum(device, &on_device, &[(0, 240)]).is_err());
        assert!(checksum(device, &on_device, &[(0, 300_008)]).is_err());
        sums
    });
}
