//! Where the tests run, and how results are compared.

use hypic_cuda::Device;

/// Lengths at which chunks, tiles and batches of staged tokens begin and end.
pub(crate) const LENGTHS: [usize; 6] = [1, 7, 63, 64, 65, 1000];

/// Runs `body` on GPU 0.
#[cfg(feature = "gpu-tests")]
pub(crate) fn on_devices<R>(body: impl Fn(&Device) -> R) {
    let device = Device::cuda(0).expect("gpu-tests need a GPU");
    body(&device);
    device.wait().unwrap();
}

/// Runs `body` on fibers in several orders; what it returns must be the same bits in each.
#[cfg(not(feature = "gpu-tests"))]
pub(crate) fn on_devices<R: PartialEq>(body: impl Fn(&Device) -> R) {
    use hypic_cuda::Order;
    let forward = body(&Device::fibers(Order::Forward));
    for order in [Order::Backward, Order::Shuffled(rand::random())] {
        assert!(body(&Device::fibers(order)) == forward, "{order:?} gives other bits: a barrier is missing");
    }
}

/// The device of a rank: `device` for the first, GPU 1 for others, which is GPU 0 again with a stream of its own where
/// there is no other.
#[cfg(feature = "gpu-tests")]
pub(crate) fn peer(device: &Device, rank: usize) -> Device {
    match rank {
        0 => device.clone(),
        _ => Device::cuda(1).or_else(|_| Device::cuda(0)).unwrap(),
    }
}

/// The device of a rank: `device` for the first, fibers of their own for others.
#[cfg(not(feature = "gpu-tests"))]
pub(crate) fn peer(device: &Device, rank: usize) -> Device {
    match rank {
        0 => device.clone(),
        _ => Device::fibers(hypic_cuda::Order::Forward),
    }
}

/// The bits of values, which compare NaN too.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// `|found - expected| / |expected|` must be within `bound`; NaN never is.
pub(crate) fn assert_close(what: &str, found: impl IntoIterator<Item = f32>, expected: &[f64], bound: f64) {
    assert_close_above(0.0, what, found, expected, bound);
}

/// The same for a `T` of `[width, width]`, but never relative to less than the identity: `T` acts on states,
/// and what a small one contributes is as small as itself.
pub(crate) fn assert_transition(
    width: usize,
    found: impl IntoIterator<Item = f32>,
    expected: &[f64],
    bound: f64,
) {
    assert_close_above((width as f64).sqrt(), "T", found, expected, bound);
}

fn assert_close_above(
    floor: f64,
    what: &str,
    found: impl IntoIterator<Item = f32>,
    expected: &[f64],
    bound: f64,
) {
    let (mut difference, mut size, mut count) = (0.0, 0.0, 0);
    for (x, &y) in found.into_iter().zip(expected) {
        difference += (f64::from(x) - y).powi(2);
        size += y * y;
        count += 1;
    }
    assert_eq!(count, expected.len(), "{what}: number of values");
    let size = size.sqrt().max(floor);
    let error = if size > 0.0 { difference.sqrt() / size } else { difference.sqrt() };
    assert!(error <= bound, "{what}: error {error:.2e} over {bound:.0e}");
}

#[cfg(not(feature = "gpu-tests"))]
#[test]
fn without_a_gpu_the_device_says_so() {
    if let Err(error) = Device::cuda(0) {
        assert!(matches!(error, hypic_cuda::Error::NoDevice { .. }), "{error}");
        assert!(error.to_string().starts_with("no CUDA device: "), "{error}");
        assert!(error.to_string().contains("cuda:0"), "{error}");
    }
}
