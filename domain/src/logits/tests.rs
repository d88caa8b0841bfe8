use super::*;

#[test]
fn the_largest_are_in_order_and_equal_ones_go_by_token() {
    let row = [1.0, 3.0, 3.0, -2.0, 1.0];
    let zeros = Logits::of_row(&[-0.0, 0.0], &Need::largest(1));
    assert!(matches!(zeros, Logits::Largest { largest, .. } if largest[0].0 == 0));
    let Logits::Largest { largest, log_sum } = Logits::of_row(&row, &Need::largest(4)) else {
        unreachable!("a portion was asked for")
    };
    assert_eq!(largest, [(1, 3.0), (2, 3.0), (0, 1.0), (4, 1.0)]);
    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    assert!((log_sum - sum.ln()).abs() < 1e-12);
    let all = Logits::of_row(&row, &Need::largest(9));
    assert!(matches!(all, Logits::Largest { largest, .. } if largest.len() == 5));
    assert_eq!(Logits::of_row(&row, &Need::all()).into_all().unwrap(), row);
}

#[test]
fn a_row_with_a_logit_that_is_not_finite_has_no_sum() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let found = Logits::of_row(&[0.0, bad], &Need::largest(1));
        assert!(matches!(found, Logits::Largest { log_sum, .. } if log_sum.is_nan()), "{bad}");
    }
}

#[test]
fn one_row_serves_several_needs() {
    let of = Need::from;
    let (few, more) = (Portion::Largest(3), Portion::Largest(5));
    let draw = |uniform, largest| Portion::Draw { temperature: 0.5, uniform, largest };
    let nucleus = |top_p, largest| Portion::Nucleus { temperature: 0.5, top_p, largest };
    let both = |one: Portion, other: Portion| {
        let both = of(one).and(of(other));
        assert_eq!(of(other).and(of(one)), both);
        both
    };
    assert_eq!(both(few, more), of(more));
    assert_eq!(both(draw(0.2, 4), more), of(draw(0.2, 5)));
    assert_eq!(both(few, draw(0.2, 4)), of(draw(0.2, 4)));
    assert_eq!(both(draw(0.2, 4), draw(0.2, 1)), of(draw(0.2, 4)));
    assert_eq!(both(draw(0.2, 4), draw(0.3, 4)), Need::all());
    assert_eq!(both(nucleus(0.9, 4), few), of(nucleus(0.9, 4)));
    assert_eq!(both(nucleus(0.9, 0), nucleus(0.9, 2)), of(nucleus(0.9, 2)));
    assert_eq!(both(nucleus(0.9, 0), nucleus(0.8, 0)), Need::all());
    assert_eq!(both(nucleus(0.9, 0), draw(0.1, 0)), Need::all());
    for portion in [few, draw(0.1, 1), nucleus(0.5, 0), Portion::All] {
        assert_eq!(both(portion, Portion::All), Need::all());
        let changed = Need { portion, addends: Arc::new(vec![(1, 0.5)]) };
        let alike = if portion == Portion::All { Need::all() } else { changed.clone() };
        assert_eq!(changed.clone().and(changed.clone()), alike);
        assert_eq!(changed.and(of(portion)), Need::all());
    }
}

#[test]
fn a_portion_is_of_the_row_as_it_was_changed_and_the_whole_is_not() {
    let row = [1.0, 3.0, 3.0, -2.0];
    let addends = Arc::new(vec![(1, MASKED), (3, 4.5), (9, 1.0)]);
    let of = |portion| Logits::of_row(&row, &Need { portion, addends: Arc::clone(&addends) });
    assert_eq!(of(Portion::All), Logits::All(row.to_vec()));
    let changed = [1.0, MASKED, 3.0, 2.5];
    assert_eq!(of(Portion::Largest(4)), Logits::of_row(&changed, &Need::largest(4)));
    let Logits::Largest { largest, log_sum } = of(Portion::Largest(4)) else {
        unreachable!("a portion was asked for")
    };
    assert_eq!(largest, [(2, 3.0), (3, 2.5), (0, 1.0), (1, MASKED)]);
    let sum: f64 = [1.0f64, 3.0, 2.5].iter().map(|x| x.exp()).sum();
    assert!((log_sum - sum.ln()).abs() < 1e-12);
    // Infinities of the model stay.
    let need = Need { portion: Portion::Largest(1), addends };
    let bad = Logits::of_row(&[0.0, f32::INFINITY], &need);
    assert!(matches!(bad, Logits::Largest { log_sum, .. } if log_sum.is_nan()));
}

#[test]
fn a_nucleus_is_as_long_as_its_share_takes() {
    // Shares of 1/2, 1/4 and four of 1/16.
    let row: Vec<f32> = [1.0f32, 16.0, 4.0, 1.0, 8.0, 2.0].iter().map(|share| share.ln()).collect();
    let kept = |top_p, largest| {
        let portion = Portion::Nucleus { temperature: 1.0, top_p, largest };
        let Logits::Nucleus { largest, weight, .. } = Logits::of_row(&row, &portion.into()) else {
            unreachable!("a nucleus was asked for")
        };
        assert!((weight - 2.0).abs() < 1e-6);
        largest.into_iter().map(|(token, _)| token).collect::<Vec<_>>()
    };
    assert_eq!(kept(0.0, 0), [1]);
    assert_eq!(kept(0.49, 0), [1]);
    assert_eq!(kept(0.51, 0), [1, 4]);
    assert_eq!(kept(0.51, 4), [1, 4, 2, 5]);
    assert_eq!(kept(0.8, 0), [1, 4, 2]);
    assert_eq!(kept(0.99, 9), [1, 4, 2, 5, 0, 3]);
    // A flat row's is longer than what is looked at first.
    let flat = vec![0.5; 4 * MOST_LARGEST];
    let portion = Portion::Nucleus { temperature: 0.7, top_p: 0.5, largest: 0 };
    let Logits::Nucleus { largest, .. } = Logits::of_row(&flat, &portion.into()) else { unreachable!() };
    assert_eq!(nucleus_of(&largest, 0.7, 256.0, 0.5), Some(128));
}

#[test]
fn a_draw_inverts_the_distribution_in_the_order_of_tokens() {
    // Shares of 1/8, 0, 1/2, 1/4 and 1/8.
    let weights = [0.25, 0.0, 1.0, 0.5, 0.25];
    for (uniform, place) in [(0.0, 0), (0.124, 0), (0.125, 2), (0.62, 2), (0.625, 3), (0.875, 4), (1.0, 4)] {
        assert_eq!(draw(&weights, uniform), Some(place), "{uniform}");
    }
    assert_eq!(draw(&[], 0.5), None);
    assert_eq!(draw(&[0.0, 0.0], 0.5), None);
}

#[test]
fn what_is_drawn_comes_with_the_largest_and_the_sum() {
    let row = [1.0, 3.0, -2.0, 3.0];
    let need = |uniform| Need::from(Portion::Draw { temperature: 0.5, uniform, largest: 1 });
    let Logits::Drawn { drawn, largest, log_sum } = Logits::of_row(&row, &need(0.999)) else {
        unreachable!("a draw was asked for")
    };
    assert_eq!((drawn, largest), (Some((3, 3.0)), vec![(1, 3.0)]));
    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    assert!((log_sum - sum.ln()).abs() < 1e-12);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let found = Logits::of_row(&[0.0, bad], &need(0.5));
        assert!(matches!(found, Logits::Drawn { drawn: None, log_sum, .. } if log_sum.is_nan()), "{bad}");
    }
    let empty = Logits::of_row(&[], &need(0.5));
    assert!(matches!(empty, Logits::Drawn { drawn: None, log_sum, .. } if log_sum == f64::NEG_INFINITY));
}
