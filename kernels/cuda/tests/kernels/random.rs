use half::bf16;
use hypic_cuda::{Buffer, random_values};
use hypic_kernels::random::RandomMatrix;
use rand::RngExt;

use crate::run::on_devices;
use crate::truth::fresh;

#[test]
fn the_device_draws_the_bits_of_plain_rust() {
    let mut rng = fresh();
    let matrix = RandomMatrix { seed: rng.random(), shape: [7, 1001], scale: 0.02 };
    let expected: Vec<f32> = matrix.values().collect();
    on_devices(|device| {
        let mut exact = Buffer::from_slice(device, &vec![f32::NAN; expected.len()]).unwrap();
        random_values(device, &matrix, &mut exact).unwrap();
        assert_eq!(exact.read().unwrap(), expected);
        let mut narrow = Buffer::from_slice(device, &vec![bf16::NAN; expected.len()]).unwrap();
        random_values(device, &matrix, &mut narrow).unwrap();
        let rounded: Vec<bf16> = expected.iter().map(|&x| bf16::from_f32(x)).collect();
        assert_eq!(narrow.read().unwrap(), rounded);
        assert!(random_values(device, &RandomMatrix { shape: [7, 1000], ..matrix }, &mut exact).is_err());
    });
}
