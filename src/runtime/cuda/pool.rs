//! Results that are reused once nobody holds them.

use std::sync::Arc;

/// Things of one kind, handed out by reference count. Something that is held is never handed out again.
pub(super) struct Pool<T> {
    all: Vec<Arc<T>>,
}

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { all: Vec::new() }
    }
}

impl<T> Pool<T> {
    /// One that nobody holds, made when there is none.
    pub(super) fn take<E>(&mut self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        // Exclusive access means that no strong and no weak reference is left outside; none can appear
        // meanwhile, since the pool itself is borrowed.
        if let Some(free) = self.all.iter_mut().find_map(|held| Arc::get_mut(held).is_some().then_some(held)) {
            return Ok(Arc::clone(free));
        }
        let made = Arc::new(make()?);
        self.all.push(Arc::clone(&made));
        Ok(made)
    }

    /// Everything in the pool, held or not.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().map(|held| &**held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_never_handed_out_again() {
        let mut pool = Pool::default();
        let mut made = 0;
        let mut take = |pool: &mut Pool<u32>| {
            pool.take(|| {
                made += 1;
                Ok::<_, ()>(made)
            })
            .unwrap()
        };
        let first = take(&mut pool);
        let second = take(&mut pool);
        assert_eq!((*first, *second), (1, 2));
        drop(first);
        let again = take(&mut pool);
        assert_eq!(*again, 1, "reused once it was free");
        let weak = Arc::downgrade(&again);
        drop(again);
        let third = take(&mut pool);
        assert_eq!(*third, 3, "a weak reference could come back to life");
        drop(weak);
        assert_eq!(*take(&mut pool), 1);
        assert_eq!(pool.iter().count(), 3);
    }

    #[test]
    fn a_failure_leaves_the_pool_as_it_was() {
        let mut pool: Pool<u32> = Pool::default();
        assert_eq!(pool.take(|| Err("no")), Err("no"));
        assert_eq!(pool.iter().count(), 0);
    }
}
