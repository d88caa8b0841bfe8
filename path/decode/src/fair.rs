//! Whose request is served next.
//!
//! Start-time fair queueing over tenants: the tenant that was served least goes first, its requests in their
//! order. A tenant that comes back starts level with those that wait: idleness earns no credit.

use std::collections::{BTreeMap, VecDeque};

use hypic_domain::id::TenantId;

/// Waiting items by tenant.
#[derive(Debug)]
pub struct FairQueue<T> {
    tenants: BTreeMap<TenantId, Tenant<T>>,
    /// Service of the tenant that was served last, when it was.
    level: u64,
}

#[derive(Debug)]
struct Tenant<T> {
    served: u64,
    items: VecDeque<(u64, T)>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { tenants: BTreeMap::new(), level: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Appends an item that costs `cost` of whatever is shared, tokens for instance.
    pub fn push(&mut self, tenant: &TenantId, cost: u64, item: T) {
        self.tenant(tenant).items.push_back((cost, item));
    }

    /// Puts an item in front of its tenant's others: it was served before and lost its place. It was paid for
    /// then, so it costs nothing now.
    pub fn put_back(&mut self, tenant: &TenantId, item: T) {
        self.tenant(tenant).items.push_front((0, item));
    }

    fn tenant(&mut self, tenant: &TenantId) -> &mut Tenant<T> {
        let level = self.level;
        self.tenants.entry(tenant.clone()).or_insert_with(|| Tenant { served: level, items: VecDeque::new() })
    }

    /// Takes the first item that may go: the least served tenant's first, in its order. Items that may not go
    /// yet keep their place and block nobody.
    pub fn take(&mut self, may_go: impl Fn(&T) -> bool) -> Option<T> {
        let (_, name, place) = self
            .tenants
            .iter()
            .filter_map(|(name, tenant)| {
                let place = tenant.items.iter().position(|(_, item)| may_go(item))?;
                Some((tenant.served, name, place))
            })
            .min_by_key(|(served, ..)| *served)
            .map(|(served, name, place)| (served, name.clone(), place))?;
        let tenant = self.tenants.get_mut(&name)?;
        let (cost, item) = tenant.items.remove(place)?;
        self.level = self.level.max(tenant.served);
        tenant.served += cost;
        self.forget_idle();
        Some(item)
    }

    /// Drops idle tenants that owe nothing, so that names do not pile up.
    fn forget_idle(&mut self) {
        let level = self.level;
        self.tenants.retain(|_, tenant| !tenant.items.is_empty() || tenant.served > level);
        if self.is_empty() {
            self.tenants.clear();
            self.level = 0;
        }
    }

    /// Removes the items for which `keep` is false, and hands them out.
    pub fn remove_unless(&mut self, mut keep: impl FnMut(&mut T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        for tenant in self.tenants.values_mut() {
            for (cost, mut item) in std::mem::take(&mut tenant.items) {
                if keep(&mut item) {
                    tenant.items.push_back((cost, item));
                } else {
                    removed.push(item);
                }
            }
        }
        self.forget_idle();
        removed
    }

    /// All waiting items.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.tenants.values_mut().flat_map(|tenant| tenant.items.iter_mut().map(|(_, item)| item))
    }

    /// All waiting items.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.tenants.values().flat_map(|tenant| tenant.items.iter().map(|(_, item)| item))
    }

    /// Waiting items.
    pub fn len(&self) -> usize {
        self.tenants.values().map(|tenant| tenant.items.len()).sum()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.tenants.values().all(|tenant| tenant.items.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FairQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.take(|_| true)).collect()
    }

    #[test]
    fn one_tenant_is_served_in_order() {
        let mut queue = FairQueue::default();
        for item in 0..5 {
            queue.push(&"a".into(), 10, item);
        }
        assert_eq!(drain(&mut queue), [0, 1, 2, 3, 4]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_flood_does_not_hold_up_another_tenant() {
        let mut queue = FairQueue::default();
        for item in 0..6 {
            queue.push(&"flood".into(), 10, item);
        }
        queue.push(&"one".into(), 10, 100);
        queue.push(&"one".into(), 10, 101);
        let order = drain(&mut queue);
        assert!(order.iter().position(|item| *item == 101).unwrap() < 5, "{order:?}");
    }

    #[test]
    fn service_is_counted_by_cost() {
        let mut queue = FairQueue::default();
        for item in 0..4 {
            queue.push(&"long".into(), 100, item);
            queue.push(&"short".into(), 50, 10 + item);
        }
        let order = drain(&mut queue);
        assert_eq!(order, [0, 10, 11, 1, 12, 13, 2, 3]);
    }

    #[test]
    fn who_may_not_go_blocks_nobody_and_keeps_its_place() {
        let mut queue = FairQueue::default();
        for item in 0..3 {
            queue.push(&"a".into(), 1, item);
        }
        assert_eq!(queue.take(|item| *item != 0), Some(1));
        assert_eq!(drain(&mut queue), [0, 2]);
    }

    #[test]
    fn who_lost_its_place_goes_first_among_its_own() {
        let mut queue = FairQueue::default();
        queue.push(&"a".into(), 1, 1);
        queue.put_back(&"a".into(), 0);
        assert_eq!(drain(&mut queue), [0, 1]);
    }

    #[test]
    fn removed_items_leave_the_others_alone() {
        let mut queue = FairQueue::default();
        for item in 0..4 {
            queue.push(&"a".into(), 1, item);
        }
        assert_eq!(queue.remove_unless(|item| *item % 2 == 0), [1, 3]);
        assert_eq!(drain(&mut queue), [0, 2]);
    }

    #[test]
    fn idleness_earns_no_credit() {
        let mut queue = FairQueue::default();
        queue.push(&"busy".into(), 1000, 0);
        queue.push(&"busy".into(), 1000, 1);
        assert_eq!(queue.take(|_| true), Some(0));
        for item in 10..20 {
            queue.push(&"late".into(), 500, item);
        }
        let order = drain(&mut queue);
        assert!(order.iter().position(|item| *item == 1).unwrap() <= 3, "{order:?}");
    }
}
