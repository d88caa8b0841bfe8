use super::*;

#[test]
fn the_largest_are_in_order_and_equal_ones_go_by_token() {
    let row = [1.0, 3.0, 3.0, -2.0, 1.0];
    let zeros = Logits::of_row(&[-0.0, 0.0], Need::Largest(1));
    assert!(matches!(zeros, Logits::Largest { largest, .. } if largest[0].0 == 0));
    let Logits::Largest { largest, log_sum } = Logits::of_row(&row, Need::Largest(4)) else {
        unreachable!("a part was asked for")
    };
    assert_eq!(largest, [(1, 3.0), (2, 3.0), (0, 1.0), (4, 1.0)]);
    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    assert!((log_sum - sum.ln()).abs() < 1e-12);
    let all = Logits::of_row(&row, Need::Largest(9));
    assert!(matches!(all, Logits::Largest { largest, .. } if largest.len() == 5));
    assert_eq!(Logits::of_row(&row, Need::All).into_all().unwrap(), row);
}

#[test]
fn a_row_with_a_logit_that_is_not_finite_has_no_sum() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let found = Logits::of_row(&[0.0, bad], Need::Largest(1));
        assert!(matches!(found, Logits::Largest { log_sum, .. } if log_sum.is_nan()), "{bad}");
    }
}
#[test]
fn one_row_serves_several_needs() {
    let (few, more) = (Need::Largest(3), Need::Largest(5));
    let draw = |uniform, largest| Need::Draw { temperature: 0.5, uniform, largest };
    assert_eq!(few.and(more), more);
    assert_eq!(draw(0.2, 4).and(more), draw(0.2, 5));
    assert_eq!(few.and(draw(0.2, 4)), draw(0.2, 4));
    assert_eq!(draw(0.2, 4).and(draw(0.2, 1)), draw(0.2, 4));
    assert_eq!(draw(0.2, 4).and(draw(0.3, 4)), Need::All);
    for need in [few, draw(0.1, 1), Need::All] {
        assert_eq!((need.and(Need::All), Need::All.and(need)), (Need::All, Need::All));
    }
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
    let need = |uniform| Need::Draw { temperature: 0.5, uniform, largest: 1 };
    let Logits::Drawn { drawn, largest, log_sum } = Logits::of_row(&row, need(0.999)) else {
        unreachable!("a draw was asked for")
    };
    assert_eq!((drawn, largest), (Some((3, 3.0)), vec![(1, 3.0)]));
    let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
    assert!((log_sum - sum.ln()).abs() < 1e-12);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let found = Logits::of_row(&[0.0, bad], need(0.5));
        assert!(matches!(found, Logits::Drawn { drawn: None, log_sum, .. } if log_sum.is_nan()), "{bad}");
    }
    let empty = Logits::of_row(&[], need(0.5));
    assert!(matches!(empty, Logits::Drawn { drawn: None, log_sum, .. } if log_sum == f64::NEG_INFINITY));
}
