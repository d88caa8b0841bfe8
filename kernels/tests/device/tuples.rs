use super::*;

/// A layer of each kind as this device stores it, of plain zeros and ones.
fn stored(device: &TestDevice, layer: usize) -> HostLayer {
    let format = device.format(&TupleFormat::default());
    let spec = &spec().layers[layer];
    let mut host = HostLayer::empty(format, 20);
    for kind in PartKind::ALL {
        let Some(shape) = format.part(spec, kind, 20) else { continue };
        let values = vec![0.5; (shape.heads * shape.rows * shape.width) as usize];
        host.encode("test", spec, kind, (&[true; LINEAR.heads], &values)).unwrap();
    }
    host
}

#[test]
fn what_a_device_stores_is_a_fixed_point() {
    let device = poisoned(1);
    for wanted in [TupleFormat::default(), TupleFormat::EXACT] {
        for eight in [wanted, TupleFormat { state: Dtype::I8, kv: Dtype::I8, ..wanted }] {
            let format = device.format(&eight);
            assert_eq!(device.format(&format), format);
            assert_eq!(format.skip_below, wanted.skip_below);
        }
    }
}

#[test]
fn layers_that_do_not_fit_are_refused_by_name() {
    let device = poisoned(1);
    let spec = spec();
    let mut pages = device.pages(&spec, 1, 16).unwrap();
    for layer in 0..2 {
        let host = stored(&device, layer);
        let mut refused = |host: &HostLayer, layer: usize| {
            let error = device.import(layer, &spec, &mut pages, host).err();
            assert!(matches!(error, Some(OpError::Shape { .. } | OpError::Unsupported { .. })), "{error:?}");
        };
        refused(&host, 1 - layer);
        refused(&host, 2);
        for part in 0..host.parts.len() {
            let edit = |edit: &dyn Fn(&mut Vec<u8>)| {
                let mut edited = host.clone();
                let mut bytes = edited.parts[part].1.to_vec();
                edit(&mut bytes);
                edited.parts[part].1 = bytes.into();
                edited
            };
            refused(&edit(&|bytes| bytes.truncate(bytes.len() - 1)), layer);
            refused(&edit(&|bytes| bytes.push(0)), layer);
            refused(&edit(&|bytes| bytes.clear()), layer);
            let mut twice = host.clone();
            twice.parts.push(host.parts[part].clone());
            refused(&twice, layer);
            if host.parts[part].0 == PartKind::Transition {
                // A head less than there are values, and one that is not there.
                refused(&edit(&|bytes| bytes[0] = 0b0111), layer);
                refused(&edit(&|bytes| bytes[0] = 0b1_0111), layer);
            } else {
                let mut missing = host.clone();
                missing.parts.remove(part);
                refused(&missing, layer);
            }
        }
        let wider = |dtype: Dtype| if dtype == Dtype::F32 { Dtype::F16 } else { Dtype::F32 };
        let format = host.format;
        for other in [
            TupleFormat { state: wider(format.state), kv: wider(format.kv), ..format },
            TupleFormat { layout: 7, kv: wider(format.kv), ..format },
        ] {
            refused(&HostLayer { format: other, ..host.clone() }, layer);
        }
        if layer == 1 {
            refused(&HostLayer { body: 21, ..host.clone() }, layer);
        }
        device.import(layer, &spec, &mut pages, &host).unwrap();
    }
}
