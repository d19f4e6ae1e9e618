"""A producer in an application with an ORM, here Django's with its connection to PostgreSQL. Copy enqueue into yours.

The job is in the transaction of the order: both are there after the commit, or neither is. SQLAlchemy does the same with
session.execute(text(...)), ActiveRecord with connection.select_value(...): whatever runs SQL in the transaction of the models.
"""
import json

from django.db import connection, models, transaction

ENQUEUE = "select id from ojs.enqueue(%s, %s, p_queue => %s, p_tenant => %s)"


def enqueue(kind, *args, tenant, queue="default"):
    """Enqueues a job in the transaction that is open, and returns its id."""
    with connection.cursor() as cursor:
        cursor.execute(ENQUEUE, [kind, json.dumps(args), queue, tenant])
        return cursor.fetchone()[0]


class Order(models.Model):
    email = models.EmailField()
    total = models.DecimalField(max_digits=12, decimal_places=2)

    class Meta:
        app_label = "shop"
        db_table = "orders"


@transaction.atomic
def place(email, total):
    order = Order.objects.create(email=email, total=total)
    return order, enqueue("receipt.send", order.id, order.email, tenant="acme")
